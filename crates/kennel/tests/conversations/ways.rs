//! The ways to a server, and how what comes back is compared.

use std::process::Command;
use std::time::Duration;

use kennel_testkit::Scope;

use crate::servers::Server;

/// What is between a client and its server.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Way {
    Direct,
    Solo,
    Daemon,
}

impl Way {
    pub(crate) fn to(self, server: &Server, scope: &Scope) -> Command {
        // Each conversation with a server that knows nothing of the one before.
        server.forget_everything();
        let options: &[&str] = match self {
            Way::Direct => {
                let mut command = scope.command(&server.line[0]);
                command.args(&server.line[1..]);
                return command;
            }
            Way::Solo => &[],
            Way::Daemon => &["--share", "always", "--linger", "100ms"],
        };
        let mut command = scope.command(env!("CARGO_BIN_EXE_kennel"));
        command
            .arg("run")
            .args(options)
            .arg("--")
            .args(&server.line);
        command
    }
}

/// Has the same conversation on every way, and compares what was heard. Returns it.
#[track_caller]
pub(crate) fn sounds_the_same(
    scope: &Scope,
    server: &Server,
    hear: impl Fn(Command) -> Vec<String>,
) -> Vec<String> {
    let plain = comparable(hear(Way::Direct.to(server, scope)));
    for way in [Way::Solo, Way::Daemon] {
        let heard = comparable(hear(way.to(server, scope)));
        assert_eq!(heard, plain, "{way:?}");
    }
    scope.nothing_left_within("after the conversations", Duration::from_secs(60));
    plain
}

/// Without the ids of the server's own requests, which the session gives out, and in an order that does not
/// depend on which of two independent messages was quicker.
pub(crate) fn comparable(mut lines: Vec<String>) -> Vec<String> {
    for line in &mut lines {
        if let Some(id) = id_of_a_request(line) {
            line.replace_range(id, "…");
        }
    }
    lines.sort();
    lines
}

fn id_of_a_request(line: &str) -> Option<std::ops::Range<usize>> {
    #[derive(serde::Deserialize)]
    struct Request<'a> {
        #[serde(borrow)]
        id: &'a serde_json::value::RawValue,
        #[serde(rename = "method")]
        _method: String,
    }
    let request: Request<'_> = serde_json::from_str(line).ok()?;
    let id = request.id.get();
    let start = id.as_ptr() as usize - line.as_ptr() as usize;
    Some(start..start + id.len())
}
