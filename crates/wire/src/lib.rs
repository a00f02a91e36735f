//! Protocol codecs without I/O: no socket, no clock, no task.
