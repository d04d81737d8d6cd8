//! Large pages for long lines, and returning free memory to the system.

use std::mem::MaybeUninit;

use rustix::mm::{Advice, madvise};

/// Asks for large pages under `room`, which is about to be filled: otherwise half of the time for a long line goes into
/// page faults. Without large pages nothing changes.
pub fn in_large_pages(room: &mut [MaybeUninit<u8>]) {
    let page = rustix::param::page_size();
    let skipped = room.as_ptr().align_offset(page);
    let length = room.len().saturating_sub(skipped) / page * page;
    if length == 0 {
        return;
    }
    let start = room[skipped..].as_mut_ptr().cast();
    // SAFETY: the pages are all within `room`, and this advice changes nothing that can be read from them.
    let _ = unsafe { madvise(start, length, Advice::LinuxHugepage) };
}

/// Returns freed memory to the system, such as that of the start. Takes some microseconds.
pub fn release_free_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it only touches memory that is free, and takes the allocator's own locks.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Makes the allocator return blocks of 64 KiB or more to the system when they are freed. Otherwise it keeps freed blocks
/// of up to 32 MiB, and those between other blocks stay.
pub fn release_large_blocks() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it only changes how the allocator gets memory from here on, and takes its own locks.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 64 * 1024);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_of_any_size_keeps_its_content() {
        for length in [0, 1, 4095, 4096, 10_000, 8 << 20] {
            let mut bytes: Vec<u8> = Vec::with_capacity(length);
            in_large_pages(bytes.spare_capacity_mut());
            bytes.extend((0..length).map(|place| place as u8));
            assert!(
                bytes
                    .iter()
                    .enumerate()
                    .all(|(place, &byte)| byte == place as u8)
            );
        }
    }
}
