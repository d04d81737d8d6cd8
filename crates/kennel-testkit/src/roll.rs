//! The roll: a file to which the processes of a test append their identities, so that the test finds all of them.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use kennel_sys::process::ProcessRef;

/// Appends the identity of this process to the file at `roll`.
pub fn sign_roll(roll: &Path) {
    let me = ProcessRef::me().expect("this process exists");
    let mut file = File::options()
        .append(true)
        .create(true)
        .open(roll)
        .expect("the roll can be opened");
    // One write, so that lines of several processes do not mix.
    file.write_all(format!("{}\n", me.identity()).as_bytes())
        .expect("the roll can be written");
}
