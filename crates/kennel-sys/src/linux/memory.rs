//! Memory for what is long, and memory that is not needed any more.

use std::mem::MaybeUninit;

use rustix::mm::{Advice, madvise};

/// Asks for large pages under `room`, which is about to be filled: a long line is otherwise half page faults.
/// Where there are none, nothing is worse than before.
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

/// Gives memory back to the system that this process has freed, such as what its start needed. Takes some microseconds.
pub fn give_back_free() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it only touches memory that is free, and takes the allocator's own locks.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// From now on, memory of 64 KiB or more goes back to the system when it is freed. Otherwise the allocator keeps what was
/// freed, of up to 32 MiB, and what is freed between other memory stays.
pub fn return_large() {
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
    fn whatever_the_room_it_holds_what_is_put_into_it() {
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
