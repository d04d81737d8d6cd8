//! `kennel logs`: what a daemon and its servers, or a detached server, said.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::process::ExitCode;
use std::time::Duration;

use kennel_sys::events;
use kennel_sys::runtime_dir::{Access, RuntimeDir};

use crate::daemon::{LOG, OLDER_LOG};
use crate::guard::record::{self as guards, Words};
use crate::meeting::Meeting;
use crate::stop::nothing_called;

/// How often a log is looked at with `-f`: a file offers no event to everyone (rule 10 names `--watch` and the like).
const FOLLOW: Duration = Duration::from_millis(250);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A name or key that `kennel ps` shows
    which: String,

    /// Go on as more is written
    #[arg(short, long)]
    follow: bool,
}

pub(crate) fn logs(args: &Args) -> ExitCode {
    match guards::words_of(&args.which) {
        Ok(Some(Words::Logged(dir))) => return shown(show_log(&dir, args.follow)),
        Ok(Some(Words::Elsewhere)) => {
            let words = "runs in the foreground: what it says goes to where it was started";
            return crate::fail(&format!("{} {words}", args.which));
        }
        Ok(None) => {}
        Err(error) => return crate::fail(&error.to_string()),
    }
    let meetings = match Meeting::all() {
        Ok(meetings) => meetings,
        Err(error) => return crate::fail(&error.to_string()),
    };
    let is_meant = |meeting: &&Meeting| {
        let named = meeting
            .record()
            .is_some_and(|record| record.name == args.which);
        named || (args.which.len() >= 4 && meeting.key().starts_with(&args.which))
    };
    let Some(meeting) = meetings.iter().find(is_meant) else {
        return nothing_called(&args.which);
    };
    shown(show_log(meeting.dir(), args.follow))
}

fn shown(shown: io::Result<()>) -> ExitCode {
    match shown {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => crate::fail(&format!("cannot show the log: {error}")),
    }
}

fn show_log(dir: &RuntimeDir, follow: bool) -> io::Result<()> {
    let open = |name| dir.open_file(name, Access::Read).ok();
    let mut stdout = io::stdout().lock();
    if let Some(mut older) = open(OLDER_LOG) {
        io::copy(&mut older, &mut stdout)?;
    }
    let mut log: Option<File> = open(LOG);
    loop {
        if let Some(log) = &mut log {
            let mut news = Vec::new();
            log.read_to_end(&mut news)?;
            stdout.write_all(&news)?;
            stdout.flush()?;
        }
        if !follow {
            return Ok(());
        }
        events::sleep(&[], &[], Some(FOLLOW))?;
        // It began anew: what is shorter than where we are is another file.
        let fresh = open(LOG);
        let position = log.as_mut().map_or(Ok(0), |log| log.stream_position())?;
        if fresh
            .as_ref()
            .is_some_and(|fresh| fresh.metadata().is_ok_and(|meta| meta.len() < position))
        {
            log = fresh;
        }
    }
}
