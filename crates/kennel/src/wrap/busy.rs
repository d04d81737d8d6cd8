//! Whether an app runs that would write over its configuration.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The pid of a running `program` of ours whose home is `home`, if there is one. Another home is another
/// configuration.
pub(crate) fn running(program: &str, home: &Path) -> Option<u32> {
    let me = rustix::process::geteuid().as_raw();
    let pids = std::fs::read_dir("/proc").ok()?;
    let pids = pids.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    pids.into_iter().find(|pid| {
        let place = Path::new("/proc").join(pid.to_string());
        let ours = place.metadata().is_ok_and(|meta| meta.uid() == me);
        ours && is_called(&place, program) && lives_in(&place, home)
    })
}

fn is_called(place: &Path, program: &str) -> bool {
    let line = std::fs::read(place.join("cmdline")).unwrap_or_default();
    let mut words = line.split(|&byte| byte == 0).take(2);
    // An interpreter may stand before it.
    words.any(|word| Path::new(OsStr::from_bytes(word)).file_name() == Some(OsStr::new(program)))
}

fn lives_in(place: &Path, home: &Path) -> bool {
    let environ = std::fs::read(place.join("environ")).unwrap_or_default();
    let wanted = [b"HOME=", home.as_os_str().as_bytes()].concat();
    environ.split(|&byte| byte == 0).any(|pair| pair == wanted)
}
