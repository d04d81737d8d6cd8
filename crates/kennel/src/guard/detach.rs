//! A server that outlives the process that started it: its guardian runs in a session of its own and is not a child of
//! this process, which waits until the guardian reports that the server listens.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::{Command, ExitCode, Stdio};

use clap::Parser;
use kennel_guard::Owner;
use kennel_sys::detach::{self, Kind};
use kennel_sys::process::{Identity, ProcessRef};
use kennel_sys::program;

use super::answer::{Answer, AnswerTo};
use super::{Args, serve};

/// The arguments for the guardian, written back as a command line.
#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    args: Args,
}

/// Starts the guardian and prints its result.
pub(super) fn run(owner: Option<&Owner>) -> ExitCode {
    match start(owner) {
        Ok(answer) => ExitCode::from(answer.print()),
        Err(error) => crate::fail(&format!("the guardian cannot be started: {error}")),
    }
}

fn start(owner: Option<&Owner>) -> std::io::Result<Answer> {
    let (report, theirs) = std::io::pipe()?;
    // The identity is taken here, at the start: when the guardian runs, another process may have that pid.
    let owner = match owner {
        None => "none".to_owned(),
        Some(Owner::Gone) => "gone".to_owned(),
        Some(Owner::Alive(process)) => process.identity().to_string(),
    };
    let mut command = Command::new(crate::this_build::itself());
    program::set_shown_name(&mut command, "kennel");
    command
        .args(["guardian", &detach::number_of(&theirs), &owner])
        .args(std::env::args_os().skip(2))
        // If it was started from inside a server's process tree, it must survive that tree.
        .env_remove(kennel_sys::tree::COOKIE)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    detach::spawn(command, &[&theirs])?;
    drop(theirs);
    let mut line = String::new();
    BufReader::new(report).read_line(&mut line)?;
    let answer = serde_json::from_str(&line);
    Ok(answer
        .unwrap_or_else(|_| Answer::failed(1, "the guardian ended before the server listened")))
}

/// Runs the guardian: `arguments` follow `kennel guardian`, as [`run`] wrote them.
pub(crate) fn guardian(mut arguments: impl Iterator<Item = std::ffi::OsString>) -> ExitCode {
    let by_hand =
        || crate::fail("the guardian cannot be started by hand: use `kennel guard --detach`");
    let mut word = || arguments.next().and_then(|word| word.into_string().ok());
    let (Some(report), Some(owner)) = (word(), word()) else {
        return by_hand();
    };
    let Some(report) = report
        .parse()
        .ok()
        .and_then(|fd| detach::adopt(fd, Kind::Pipe).ok())
    else {
        return by_hand();
    };
    let owner = match owner.as_str() {
        "none" => None,
        "gone" => Some(Owner::Gone),
        identity => match identity.parse::<Identity>() {
            Ok(identity) => Some(match ProcessRef::find(&identity) {
                Ok(Some(process)) => Owner::Alive(process),
                Ok(None) => Owner::Gone,
                Err(error) => return crate::fail(&format!("cannot find the owner: {error}")),
            }),
            Err(_) => return by_hand(),
        },
    };
    let line = std::iter::once("kennel guard".into()).chain(arguments);
    let args = Line::parse_from(line).args;
    let answer_to = AnswerTo::Pipe(Some(File::from(report)));
    ExitCode::from(serve(args, owner, answer_to))
}
