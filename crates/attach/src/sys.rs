//! The ioctls of loop devices.
//!
//! This file is one of the listed places with unsafe code.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use linux_raw_sys::loop_device::{
    LO_FLAGS_DIRECT_IO, LO_FLAGS_PARTSCAN, LO_FLAGS_READ_ONLY, LO_NAME_SIZE, LOOP_CLR_FD,
    LOOP_CONFIGURE, LOOP_CTL_GET_FREE, LOOP_GET_STATUS64, LOOP_SET_CAPACITY, loop_config,
    loop_info64,
};

use crate::steps::Wanted;

/// Length in bytes of the name field of a loop device, including a zero byte at the end.
pub(crate) const FILE_NAME_BYTES: usize = LO_NAME_SIZE as usize;

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Returns the number of a free loop device, which the kernel creates if there is none.
pub(crate) fn free_loop(control: &File) -> io::Result<u32> {
    // SAFETY: no memory is passed.
    let number = check(unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE as _) })?;
    Ok(number as u32)
}

/// Adjusts the size of a loop device to the present size of its file.
pub(crate) fn resize_loop(device: &File) -> io::Result<()> {
    // SAFETY: no memory is passed.
    check(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_SET_CAPACITY as _) }).map(drop)
}

/// Connects the loop device `device` to a file, without page cache and with partition scanning. `mark` identifies the
/// export for which the device is connected.
pub(crate) fn configure_loop(
    device: &File,
    file: &File,
    Wanted { block_bytes, read_only }: Wanted,
    mark: &str,
) -> io::Result<()> {
    // SAFETY: the structure is made of numbers, and zeros are valid for all numbers.
    let mut config: loop_config = unsafe { std::mem::zeroed() };
    config.fd = file.as_raw_fd() as u32;
    config.block_size = block_bytes;
    config.info.lo_flags = LO_FLAGS_DIRECT_IO as u32 | LO_FLAGS_PARTSCAN as u32;
    if read_only {
        config.info.lo_flags |= LO_FLAGS_READ_ONLY as u32;
    }
    // The last byte stays zero.
    let len = mark.len().min(FILE_NAME_BYTES - 1);
    config.info.lo_file_name[..len].copy_from_slice(&mark.as_bytes()[..len]);
    // SAFETY: reads the structure that is passed.
    check(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE as _, &raw const config) })
        .map(drop)
}

/// Returns the mark that [`configure_loop`] gave to the loop device.
pub(crate) fn loop_mark(device: &File) -> io::Result<String> {
    // SAFETY: the structure is made of numbers, and zeros are valid for all numbers.
    let mut info: loop_info64 = unsafe { std::mem::zeroed() };
    let into = &raw mut info;
    // SAFETY: space for the structure that is written.
    check(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64 as _, into) })?;
    let mark = info.lo_file_name.split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(mark).into_owned())
}

/// Disconnects a loop device from its file, at once or when its last user closes the device.
pub(crate) fn clear_loop(device: &File) -> io::Result<()> {
    // SAFETY: no memory is passed.
    check(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CLR_FD as _, 0) }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loop_ioctl_structures_have_kernel_sizes() {
        assert_eq!((size_of::<loop_info64>(), size_of::<loop_config>()), (232, 304));
    }
}
