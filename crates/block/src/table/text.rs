//! The text form of a table: one line for each segment, in bytes.
//!
//! ```text
//! 0+1073741824 linear p0 4096
//! 1073741824+8388608 striped 65536 skip 0 p1:0 p2:1048576
//! ```
//!
//! A line has the byte range of the segment, the type of its place, and the position of its bytes in the lowers.

use std::fmt;

use super::{Origin, Place, Segment, Table};

impl fmt::Display for Segment<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.range, self.place)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Linear(Origin { port, start }) => write!(f, "linear {port} {start}"),
            Self::Striped(stripe) => {
                write!(f, "striped {} skip {}", stripe.chunk(), stripe.skip())?;
                let mut columns = stripe.columns().iter();
                columns.try_for_each(|Origin { port, start }| write!(f, " {port}:{start}"))
            }
        }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, segment) in self.segments().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(f, "{separator}{segment}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
