//! Does nothing until it is killed, whatever becomes of its stdin: an idle server that waits for events. Its arguments tell one
//! from another.

fn main() {
    kennel_testkit::show_system_calls();
    loop {
        // Not `sleep`: a process that waits for a time may be a job.
        let _ = kennel_sys::events::sleep(&[], &[], None);
    }
}
