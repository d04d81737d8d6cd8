//! The process that a warden serves, for tests; and, as `tk-tree warden`, the warden.
//!
//! `tk-tree serve RECORDS EOF_MS TERM_MS -- COMMAND…` starts COMMAND under a warden and prints its reports. A line `stop`
//! on its stdin starts the stop ladder. `tk-tree serve-recorded` does so only if the tree's record can be written, and
//! removes RECORDS before. `tk-tree daemon …` stays, as a daemon does: a server could start it to hide below it. `tk-tree
//! next-start RECORDS TERM_MS` ends the leftovers of an earlier one.
#![expect(
    clippy::print_stdout,
    reason = "what it hears is for the test that started it"
)]

use std::ffi::OsString;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::time::Duration;

use kennel_sys::tree::{self, Detached, Ladder, Launch, Report, Tree};
use rustix::event::{PollFd, PollFlags, poll};

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let word = |at: usize| {
        arguments
            .get(at)
            .and_then(|word| word.to_str())
            .unwrap_or_default()
    };
    match word(0) {
        "warden" => return tree::warden_main(arguments.into_iter().skip(1)).into(),
        verb @ ("serve" | "serve-recorded") => serve(
            verb == "serve-recorded",
            word(1),
            [millis(word(2)), millis(word(3))],
            arguments[5..].to_vec(),
        ),
        "daemon" => loop {
            rustix::event::pause();
        },
        "next-start" => {
            let ended = tree::end_leftovers(directory(word(1)).as_fd(), millis(word(2)));
            println!("{:?}", ended.expect("leftovers can be ended"));
        }
        other => panic!("tk-tree does not know {other:?}"),
    }
    ExitCode::SUCCESS
}

fn serve(recorded: bool, path: &str, ladder: [Duration; 2], server: Vec<OsString>) {
    tree::become_subreaper().expect("a subreaper");
    let records = directory(path);
    let [after_eof, after_term] = ladder;
    let (stdin, to_server) = std::io::pipe().expect("a pipe");
    let mut to_server = Some(to_server);
    let [_, stdout, stderr] = kennel_sys::stdio::inherited().expect("our streams");
    // A test may start another program in its place.
    let warden = std::env::var_os("TK_WARDEN").unwrap_or_else(|| "/proc/self/exe".into());
    let launch = Launch {
        server,
        warden: vec![warden, "warden".into()],
        stdio: [stdin.into(), stdout, stderr],
        env: None,
        cwd: None,
        ladder: Ladder {
            after_eof,
            after_term,
        },
        detached: detached(),
        records: Some(records.as_fd()),
    };
    let tree = match recorded {
        true => {
            std::fs::remove_dir(path).expect("an empty directory");
            launch.start_recorded()
        }
        false => launch.start(),
    };
    let mut tree = tree.expect("a warden starts");
    println!("warden {}", tree.warden().identity());

    let ours = std::io::stdin();
    let mut listening = true;
    loop {
        let mut fds = vec![PollFd::new(&tree, PollFlags::IN)];
        if listening {
            fds.push(PollFd::new(&ours, PollFlags::IN));
        }
        poll(&mut fds, None).expect("poll");
        let (heard, asked) = (ready(&fds[0]), fds.get(1).is_some_and(ready));
        if asked {
            listening = obey_line(&tree, &mut to_server);
        }
        if !heard {
            continue;
        }
        match tree.next_report().expect("a report") {
            Some(report) => {
                println!("report {report:?}");
                if matches!(report, Report::Empty | Report::Refused(_)) {
                    break;
                }
            }
            None => {
                tree.wait().expect("the warden is reaped");
                println!(
                    "strays {}",
                    tree::end_strays(&[], Some(records.as_fd())).expect("strays can be ended")
                );
                break;
            }
        }
    }
    drop(to_server);
    tree.wait().expect("the warden is reaped");
}

/// Reads a line of stdin and obeys it; `false` at the end of stdin.
fn obey_line(tree: &Tree, to_server: &mut Option<std::io::PipeWriter>) -> bool {
    let mut line = [0u8; 64];
    let length = std::io::stdin().read(&mut line).expect("a line");
    if line[..length].starts_with(b"stop") {
        *to_server = None;
        let asked = match line[..length].starts_with(b"stop after eof") {
            true => tree.stop_after_eof(),
            false => tree.stop(),
        };
        asked.expect("stop");
    }
    length > 0
}

fn ready(fd: &PollFd<'_>) -> bool {
    !fd.revents().is_empty()
}

fn directory(path: &str) -> OwnedFd {
    std::fs::File::open(path)
        .expect("the directory of records")
        .into()
}

fn millis(text: &str) -> Duration {
    Duration::from_millis(text.parse().expect("milliseconds"))
}

/// The policy for detached services that a test sets.
fn detached() -> Detached {
    let word = std::env::var("TK_DETACHED").unwrap_or_default();
    word.parse().unwrap_or_default()
}
