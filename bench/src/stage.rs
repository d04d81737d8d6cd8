//! All of it happens in a tree of its own, in a directory of its own: whatever is interrupted, nothing is left.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use kennel_sys::Signal;
use kennel_sys::events;
use kennel_sys::signals::Signals;
use kennel_sys::stdio;
use kennel_sys::tree::{Detached, Exit, Ladder, Launch, Report, Tree};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::beside_us;

/// The variable that says that this is the inside.
const INSIDE: &str = "BENCH_INSIDE";
/// Where the peers are, outside and inside: a warden hands no `KENNEL_…` through.
const PEERS: [&str; 2] = ["KENNEL_BENCH_PEERS", "BENCH_PEERS"];

pub(crate) fn is_inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// Runs this program once more, inside; ends all of it when it has ended, or when a signal says so.
pub(crate) fn enter() -> io::Result<ExitCode> {
    let signals = Signals::catch(&[Signal::INT, Signal::TERM, Signal::HUP])?;
    // A short name: there are sockets below it.
    let dir = Dir(std::env::temp_dir().join(format!("kb-{}", std::process::id())));
    let home = dir.0.join("home");
    std::fs::create_dir_all(&home)?;
    let mut tree = launch(&dir.0, &home)?;
    let code = attend(&tree, &signals);
    tree.stop()?;
    tree.wait()?;
    dir.stop_daemons()?;
    code
}

fn launch(dir: &Path, home: &Path) -> io::Result<Tree> {
    let mut server = vec![std::env::current_exe()?.into_os_string()];
    server.extend(std::env::args_os().skip(1));
    // Not the person's: programs read and write there.
    let mut env: Vec<(OsString, OsString)> = std::env::vars_os()
        .filter(|(name, _)| !name.to_string_lossy().starts_with("XDG_"))
        .collect();
    let peers = std::env::var_os(PEERS[0]).map(|peers| (PEERS[1].into(), peers));
    env.extend(peers);
    env.extend([
        (INSIDE.into(), "1".into()),
        ("TMPDIR".into(), dir.into()),
        ("HOME".into(), home.into()),
        // What others keep, and what they would ask the network.
        ("MCP_REMOTE_CONFIG_DIR".into(), home.join("remote").into()),
        ("FASTMCP_CHECK_FOR_UPDATES".into(), "off".into()),
    ]);
    let [_, stdout, stderr] = stdio::inherited()?;
    Launch {
        server,
        warden: vec![beside_us("kennel")?.into(), "warden".into()],
        stdio: [stdio::nothing()?, stdout, stderr],
        env: Some(env),
        cwd: None,
        ladder: Ladder {
            after_eof: Duration::ZERO,
            after_term: Duration::from_secs(1),
        },
        detached: Detached::End,
        records: None,
    }
    .start()
}

/// Until it has ended by itself, or is to be ended.
fn attend(tree: &Tree, signals: &Signals) -> io::Result<ExitCode> {
    loop {
        events::sleep(&[&signals, &tree], &[], None)?;
        if signals.next().is_some() {
            eprintln!("\nkennel-bench: interrupted: ending what was started");
            return Ok(ExitCode::from(130));
        }
        // It may have been a signal that was not for us.
        let mut polled = [PollFd::new(tree, PollFlags::IN)];
        if poll(&mut polled, Some(&Timespec::default()))? == 0 {
            continue;
        }
        match tree.next_report()? {
            Some(Report::Exited(Exit::Code(code))) => {
                return Ok(u8::try_from(code).map_or(ExitCode::FAILURE, ExitCode::from));
            }
            Some(Report::Started { .. }) => {}
            _ => return Ok(ExitCode::FAILURE),
        }
    }
}

/// A directory that goes with us.
struct Dir(PathBuf);

impl Dir {
    /// A warden spares daemons, which are nobody's: these are ours.
    fn stop_daemons(&self) -> io::Result<()> {
        for entry in std::fs::read_dir(&self.0)?.flatten() {
            let run = entry.path().join("run");
            if run.is_dir() {
                Command::new(beside_us("kennel")?)
                    .args(["stop", "--all"])
                    .env("KENNEL_RUNTIME_DIR", run)
                    .stdin(Stdio::null())
                    .stdout(Stdio::null())
                    .stderr(Stdio::null())
                    .status()?;
            }
        }
        Ok(())
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
