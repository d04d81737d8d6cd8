//! Does nothing until it is killed, even if its stdin is closed: an idle server that waits for events. Its arguments only
//! serve to find it.

fn main() {
    kennel_testkit::show_system_calls();
    loop {
        // Not `sleep`: a process that waits for a time may be a job.
        let _ = kennel_sys::events::sleep(&[], &[], None);
    }
}
