//! The Linux backend: functions that only this kernel can answer. The rest of the crate calls them by name; the backend of
//! another platform is another folder with the same functions.

mod activity;
mod at_start;
mod buffers;
mod cached_stat;
mod child_search;
mod confinement;
mod descriptors;
mod far_end;
mod file_locks;
mod files;
mod memory;
mod net;
mod open_files;
mod orphans;
mod own_process;
mod pidfd;
mod procfs;
mod reactor;
mod relations;
mod shared_memory;
mod sock_diag;
mod socket_options;
mod sockets;
mod streams;
mod waits;
mod wakers;

pub(crate) use activity::{catches_alarm, cpu_time, has_timers, transferred_bytes, work};
pub(crate) use at_start::stdout_was_closed;
pub(crate) use buffers::{buffer_size, pipe_size, set_buffer_size, set_pipe_size, unread_by_peer};
pub(crate) use child_search::ChildSearch;
pub(crate) use confinement::confinement;
pub(crate) use descriptors::{Descriptor, IO_URING, registered_files};
pub(crate) use far_end::{
    Channel, FarEnd, Sockets, channel, has_unread_input, has_waiting_connections, pipe_far_end,
    readers, writers,
};
pub(crate) use file_locks::{holds_any_lock, holds_lock, holds_lock_by, lock_holders, lock_owners};
pub use files::{SHARED_DIRECTORIES, SYSTEM_DIRECTORIES, mount_points};
pub(crate) use files::{
    anonymous_file, chmod_entry, copy_attributes, descriptor_path, exchange,
    open_dir_of_same_mount, open_entry, reopen,
};
pub use memory::{in_large_pages, release_free_memory, release_large_blocks};
#[cfg(test)]
pub(crate) use net::each_source;
pub use net::listens_at;
pub(crate) use net::{listening_in_namespace_of, tcp_sockets};
pub(crate) use open_files::{
    FileKind, FileStamp, OpenFile, blocked_locks, event_number, inode_number, may_read, open_files,
    open_links, pidfd_target, reads_only, watched_inodes,
};
pub(crate) use orphans::{OrphanFacts, end as end_orphans, find as find_orphans};
pub(crate) use own_process::{
    close_at_exec_from, die_with_parent, errno, is_first_thread, is_subreaper, outlive_parent,
    require_served, set_errno, set_process_name, set_subreaper,
};
pub(crate) use pidfd::{
    exited, open_process, peer_process, pid_of, probe_features, send_signal, unique_of, wait_exit,
};
pub use procfs::ephemeral_ports;
pub(crate) use procfs::{
    age, boot_id, children, children_of_this_process, command_line, command_name, elapsed_since,
    environ_has, environ_value, exists, fd_identity, has_own_proc, holds_file, holds_file_with,
    is_kennel, newest_pid, now_in_ticks, pid_namespace, processes, resident, session_of,
    sockets_of, stat, stream_identity, this_program, thread_count_of_this_process, user_of,
    visible_pid,
};
pub(crate) use reactor::Poller;
pub(crate) use relations::{
    foreign_namespace, is_frozen, is_reaper, namespace_of_init, processes_in,
    started_by_service_manager, thread_group, traced, tracer_of,
};
pub(crate) use shared_memory::{
    SharedMapping, all_mappings, attached, shared_mappings, system_v_users,
};
pub(crate) use socket_options::{
    allow_descriptors, descriptors_allowed, message_channel, peer_credentials, send,
};
pub(crate) use sockets::{Connections, network_namespace_of};
pub use streams::DirChanges;
pub(crate) use streams::{fill_random, reopen_to_read, reopen_to_write, write_without_waiting};
pub(crate) use waits::{Wait, waits};
pub use wakers::Waker;

/// The fix if the processes of this machine cannot be listed.
pub const FIX_FOR_HIDDEN_PROCESSES: &str = "mount a /proc of this pid namespace";
