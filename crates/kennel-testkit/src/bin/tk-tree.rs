//! The process a warden serves, as a test sees it; and, as `tk-tree warden`, the warden.
//!
//! `tk-tree serve RECORDS EOF_MS TERM_MS -- COMMAND…` starts COMMAND under a warden and tells on
//! stdout what it hears. A line `stop` on its stdin asks for the ladder.
//! `tk-tree serve-recorded` does so only if the tree's record can be written, and removes RECORDS before.
//! `tk-tree daemon …` stays, as a daemon does: what a server could start to hide behind it.
//! `tk-tree next-start RECORDS TERM_MS` ends what an earlier one left behind.
#![expect(
    clippy::print_stdout,
    reason = "what it hears is for the test that started it"
)]

use std::ffi::OsString;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::time::Duration;

use kennel_sys::tree::{self, Detached, Ladder, Launch, Report};
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
    let (stdin, to_server) = rustix::pipe::pipe().expect("a pipe");
    rustix::io::fcntl_setfd(&to_server, rustix::io::FdFlags::CLOEXEC).expect("a flag");
    let mut to_server = Some(to_server);
    #[expect(clippy::disallowed_methods, reason = "nothing is written here")]
    let stderr = std::io::stderr()
        .as_fd()
        .try_clone_to_owned()
        .expect("stderr");
    let stdout = std::io::stdout()
        .as_fd()
        .try_clone_to_owned()
        .expect("stdout");
    let launch = Launch {
        server,
        warden: vec!["/proc/self/exe".into(), "warden".into()],
        stdio: [stdin, stdout, stderr],
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

    let mut ours = std::io::stdin();
    let mut listening = true;
    loop {
        let mut fds = vec![PollFd::new(&tree, PollFlags::IN)];
        if listening {
            fds.push(PollFd::new(&ours, PollFlags::IN));
        }
        poll(&mut fds, None).expect("poll");
        let (heard, asked) = (ready(&fds[0]), fds.get(1).is_some_and(ready));
        if asked {
            let mut line = [0u8; 64];
            let length = ours.read(&mut line).expect("a line");
            listening = length > 0;
            if line[..length].starts_with(b"stop") {
                to_server = None;
                let asked = match line[..length].starts_with(b"stop after eof") {
                    true => tree.stop_after_eof(),
                    false => tree.stop(),
                };
                asked.expect("stop");
            }
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

/// What a test wants to become of detached services.
fn detached() -> Detached {
    let word = std::env::var("TK_DETACHED").unwrap_or_default();
    word.parse().unwrap_or_default()
}
