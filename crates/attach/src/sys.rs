//! The ioctls of block devices.
//!
//! One of the listed places of unsafe code.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_ulong};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

// `linux/loop.h`
const LOOP_CLR_FD: c_ulong = 0x4C01;
const LOOP_GET_STATUS64: c_ulong = 0x4C05;
const LOOP_SET_CAPACITY: c_ulong = 0x4C07;
const LOOP_CONFIGURE: c_ulong = 0x4C0A;
const LOOP_CTL_GET_FREE: c_ulong = 0x4C82;

const LO_FLAGS_READ_ONLY: u32 = 1;
const LO_FLAGS_PARTSCAN: u32 = 8;
const LO_FLAGS_DIRECT_IO: u32 = 16;

/// Length of the name field, with a zero at the end.
pub(crate) const FILE_NAME_BYTES: usize = 64;

#[repr(C)]
struct LoopInfo64 {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    sizelimit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; FILE_NAME_BYTES],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo64,
    reserved: [u64; 8],
}

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Returns the number of a free loop device; makes one if there is none.
pub(crate) fn free_loop(control: &File) -> io::Result<u32> {
    // SAFETY: no memory is passed.
    let number = check(unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE as _) })?;
    Ok(number as u32)
}

/// Adjusts a loop device to the present size of its file.
pub(crate) fn resize_loop(device: &File) -> io::Result<()> {
    // SAFETY: no memory is passed.
    check(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_SET_CAPACITY as _) }).map(drop)
}

/// Puts a loop device on a whole file, bypassing the page cache, with its partitions. `mark` identifies the
/// owner.
pub(crate) fn configure_loop(
    device: &File,
    file: &File,
    block_bytes: u32,
    read_only: bool,
    mark: &str,
) -> io::Result<()> {
    // SAFETY: the structure is made of numbers, and zeros are valid for all numbers.
    let mut config: LoopConfig = unsafe { std::mem::zeroed() };
    config.fd = file.as_raw_fd() as u32;
    config.block_size = block_bytes;
    config.info.flags = LO_FLAGS_DIRECT_IO | LO_FLAGS_PARTSCAN;
    if read_only {
        config.info.flags |= LO_FLAGS_READ_ONLY;
    }
    // The last byte stays zero.
    let len = mark.len().min(FILE_NAME_BYTES - 1);
    config.info.file_name[..len].copy_from_slice(&mark.as_bytes()[..len]);
    // SAFETY: reads the structure that is passed.
    check(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE as _, &raw const config) })
        .map(drop)
}

/// Returns the mark of a loop device.
pub(crate) fn loop_mark(device: &File) -> io::Result<String> {
    // SAFETY: the structure is made of numbers, and zeros are valid for all numbers.
    let mut info: LoopInfo64 = unsafe { std::mem::zeroed() };
    let into = &raw mut info;
    // SAFETY: space for the structure that is written.
    check(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64 as _, into) })?;
    let mark = info.file_name.split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(mark).into_owned())
}

/// Takes a loop device off its file, at once or when its last user has closed it.
pub(crate) fn clear_loop(device: &File) -> io::Result<()> {
    // SAFETY: no memory is passed.
    check(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CLR_FD as _, 0) }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loop_structures_have_kernel_sizes() {
        assert_eq!((size_of::<LoopInfo64>(), size_of::<LoopConfig>()), (232, 304));
    }
}
