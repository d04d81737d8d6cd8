//! A program of somebody else's that stands in the middle.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use kennel_sys::events;
use kennel_sys::tree::{Detached, Ladder, Launch, Report, Tree};

use crate::beside_us;

/// How long a broker may take until it listens.
const PATIENCE: Duration = Duration::from_secs(30);

/// Dropping it ends it and all it has started; so does our own end, however that comes.
#[derive(Debug)]
pub(super) struct Broker {
    tree: Tree,
    pid: u32,
    /// Some end when their input does.
    input: Option<OwnedFd>,
}

impl Broker {
    /// Waits until it is ready.
    pub(super) fn start(command: Vec<OsString>, is_ready: impl Fn() -> bool) -> io::Result<Broker> {
        let (read, write) = io::pipe()?;
        let null = || std::fs::File::options().write(true).open("/dev/null");
        let tree = Launch {
            server: command,
            warden: vec![beside_us("kennel")?.into(), "warden".into()],
            stdio: [read.into(), null()?.into(), null()?.into()],
            env: None,
            cwd: Some(Path::new("/").into()),
            ladder: Ladder {
                after_eof: Duration::from_millis(500),
                after_term: Duration::from_millis(500),
            },
            detached: Detached::End,
            records: None,
        }
        .start()?;
        let pid = match tree.next_report()? {
            Some(Report::Started { pid, .. }) => pid,
            _ => return Err(io::Error::other("it does not start")),
        };
        let broker = Broker {
            tree,
            pid,
            input: Some(write.into()),
        };
        let deadline = Instant::now() + PATIENCE;
        while !is_ready() {
            if Instant::now() > deadline {
                return Err(io::Error::other("it does not listen within 30 s"));
            }
            // It says nothing when it is ready; it can only be tried.
            events::sleep(&[], &[], Some(Duration::from_millis(5)))?;
        }
        Ok(broker)
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.tree.stop();
        let _ = self.tree.wait();
    }
}
