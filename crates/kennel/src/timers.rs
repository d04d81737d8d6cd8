//! How long things last: flags, and the same as variables. A bad flag is an error; a bad variable is a
//! warning and the default, for whoever set it is not at hand.

use std::ffi::OsString;
use std::time::Duration;

use kennel_core::lifetime;
use kennel_sys::process::{Identity, ProcessRef};
use kennel_sys::tree::Detached;

use crate::size::{DEFAULT_MAX_LINE, LEAST_MAX_LINE};
use crate::{duration, size};

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Timers {
    /// How long a daemon outlives its last client [default: 60s]
    #[arg(long, value_name = "D")]
    linger: Option<String>,

    /// How long the owner must be gone, with no client, before a daemon ends [default: 5s]
    #[arg(long, value_name = "D")]
    grace: Option<String>,

    /// Backstop for clients whose process cannot be seen: silent for so long, they count as gone [default: 30m]
    #[arg(long, value_name = "D")]
    max_idle: Option<String>,

    /// How long a daemon may take to start before this session goes on without one [default: 5s]
    #[arg(long, value_name = "D")]
    start_timeout: Option<String>,

    /// Stop the server after this time without a request, or never; the next request starts it again [default: never]
    ///
    /// Sessions stay, and notice nothing but the time its start takes. What the server keeps in its memory alone is
    /// gone then: that is why it is off unless you ask for it.
    #[arg(long, value_name = "D")]
    hibernate: Option<String>,

    /// How long the server has to end by itself: after its stdin closed, then after SIGTERM [default: 2s,2s]
    #[arg(long, value_name = "D[,D]")]
    stop_after: Option<String>,

    /// The longest line that is taken from the app or from the server [default: 128M]
    ///
    /// A longer one is skipped and answered with an error; the session goes on. A daemon keeps what the session said that
    /// started it.
    #[arg(long, value_name = "SIZE")]
    max_line: Option<String>,

    /// Which processes that detached themselves (setsid) outlive the server: auto, keep or end [default: auto]
    ///
    /// auto: services that listen on a socket and have a connection from outside the server's process tree, and known ones
    /// (gpg-agent, adb, build daemons). keep: all. end: none. `kennel ps` lists what was kept, `kennel stop` ends it.
    #[arg(long, value_name = "WHICH")]
    detached: Option<String>,

    /// A process whose end, with no client left, ends the daemon
    #[arg(long, value_name = "PID", allow_hyphen_values = true)]
    owner_pid: Option<String>,
}

/// The timers as they are in force.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settled {
    pub(crate) linger: Option<Duration>,
    pub(crate) grace: Duration,
    pub(crate) max_idle: Duration,
    pub(crate) start_timeout: Duration,
    pub(crate) hibernate: Option<Duration>,
    pub(crate) stop_after: (Duration, Duration),
    pub(crate) max_line: usize,
    pub(crate) detached: Detached,
    pub(crate) owner: Option<Identity>,
}

/// The settings that `servers.toml` may have for a server, or for all.
pub(crate) const TIMERS: [&str; 8] = [
    "linger",
    "grace",
    "max-idle",
    "start-timeout",
    "hibernate",
    "stop-after",
    "max-line",
    "detached",
];

/// Whether a text can be the value of this timer.
pub(crate) fn check(name: &str, text: &str) -> Result<(), String> {
    match name {
        "stop-after" => rungs(text).map(drop),
        "hibernate" => hibernation(text).map(drop),
        "max-line" => line_length(text).map(drop),
        "detached" => detached(text).map(drop),
        "max-idle" => max_idle(text).map(drop),
        "start-timeout" => start_timeout(text).map(drop),
        _ => duration::parse(text)
            .map(drop)
            .map_err(|error| error.to_string()),
    }
}

/// What the value of this timer is in `servers.toml`, for a value that is no text.
pub(crate) fn what_to_write(name: &str) -> &'static str {
    match name {
        "stop-after" => "one or two durations, written as a text: \"30s\" or \"2s,10s\"",
        "hibernate" => "a duration or never, written as a text: \"30m\"",
        "max-line" => "a size such as 128M, written as a text: \"128M\"",
        "detached" => "\"auto\", \"keep\" or \"end\"",
        _ => "a duration, written as a text: \"30s\"",
    }
}

impl Timers {
    /// Takes what is written down for a timer, unless a flag or a variable says otherwise.
    pub(crate) fn fill(&mut self, written: Vec<(&'static str, String)>) {
        for (name, text) in written {
            let flag = match name {
                "linger" => &mut self.linger,
                "grace" => &mut self.grace,
                "max-idle" => &mut self.max_idle,
                "start-timeout" => &mut self.start_timeout,
                "hibernate" => &mut self.hibernate,
                "stop-after" => &mut self.stop_after,
                "max-line" => &mut self.max_line,
                "detached" => &mut self.detached,
                _ => continue,
            };
            if flag.is_none() && of_variable(name).is_none() {
                *flag = Some(text);
            }
        }
    }

    pub(crate) fn settle(&self) -> Result<Settled, String> {
        let time = |text: &str| duration::parse(text).map_err(|error| error.to_string());
        let seconds = Duration::from_secs;
        Ok(Settled {
            linger: value("linger", &self.linger, time)?,
            grace: value("grace", &self.grace, time)?.unwrap_or(lifetime::GRACE),
            max_idle: value("max-idle", &self.max_idle, max_idle)?.unwrap_or(lifetime::MAX_IDLE),
            start_timeout: value("start-timeout", &self.start_timeout, start_timeout)?
                .unwrap_or(seconds(5)),
            hibernate: value("hibernate", &self.hibernate, hibernation)?.flatten(),
            stop_after: value("stop-after", &self.stop_after, rungs)?
                .unwrap_or((seconds(2), seconds(2))),
            max_line: value("max-line", &self.max_line, line_length)?.unwrap_or(DEFAULT_MAX_LINE),
            detached: value("detached", &self.detached, detached)?.unwrap_or_default(),
            owner: value("owner-pid", &self.owner_pid, owner)?,
        })
    }
}

/// What a flag says, else its variable (`--max-idle`: `KENNEL_MAX_IDLE`).
pub(crate) fn value<T>(
    name: &str,
    flag: &Option<String>,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<Option<T>, String> {
    if let Some(text) = flag {
        let value = parse(text).map_err(|error| format!("--{name}: {error}"))?;
        return Ok(Some(value));
    }
    let Some(text) = of_variable(name) else {
        return Ok(None);
    };
    let ignored = |error| crate::warn(&format!("{} is ignored: {error}", variable(name)));
    Ok(parse(&text.to_string_lossy()).map_err(ignored).ok())
}

/// What the variable of a flag says. An empty one says nothing.
fn of_variable(name: &str) -> Option<OsString> {
    std::env::var_os(variable(name)).filter(|text| !text.is_empty())
}

/// The variable of a flag (`max-idle`: `KENNEL_MAX_IDLE`).
pub(crate) fn variable(name: &str) -> String {
    format!("KENNEL_{}", name.replace('-', "_").to_uppercase())
}

/// After which time without a request the server stops; `None` for never.
fn hibernation(text: &str) -> Result<Option<Duration>, String> {
    if text == "never" {
        return Ok(None);
    }
    let after = duration::parse(text).map_err(|error| format!("{error}, or never"))?;
    match after.is_zero() {
        false => Ok(Some(after)),
        true => Err(format!(
            "{text:?} would stop the server between any two requests; write never to keep it, or a time as in 10m"
        )),
    }
}

/// How long a client may be silent.
fn max_idle(text: &str) -> Result<Duration, String> {
    let words = "would disconnect such a client between any two requests; write a time as in 30m";
    not_zero(text, words)
}

/// How long a daemon may take to start.
fn start_timeout(text: &str) -> Result<Duration, String> {
    let words = "leaves a daemon no time to start; write a time as in 5s, or `--share never` to go without a daemon";
    not_zero(text, words)
}

fn not_zero(text: &str, words: &str) -> Result<Duration, String> {
    let time = duration::parse(text).map_err(|error| error.to_string())?;
    match time.is_zero() {
        false => Ok(time),
        true => Err(format!("{text:?} {words}")),
    }
}

pub(crate) fn detached(text: &str) -> Result<Detached, String> {
    match text.parse() {
        Ok(detached @ (Detached::Auto | Detached::Keep | Detached::End)) => Ok(detached),
        _ => Err(format!("{text:?} is none of auto, keep and end")),
    }
}

fn rungs(text: &str) -> Result<(Duration, Duration), String> {
    let time = |text: &str| duration::parse(text).map_err(|error| error.to_string());
    let (first, second) = text.split_once(',').unwrap_or((text, text));
    Ok((time(first)?, time(second)?))
}

fn line_length(text: &str) -> Result<usize, String> {
    let bytes = size::parse(text).map_err(|error| error.to_string())?;
    match bytes < LEAST_MAX_LINE {
        true => Err(format!(
            "{text} is too short: {}K is the least",
            LEAST_MAX_LINE / 1024
        )),
        false => Ok(bytes),
    }
}

fn owner(text: &str) -> Result<Identity, String> {
    let refused = || format!("{text:?} is not the pid of a process that could own a server");
    let pid: u32 = text.trim().parse().map_err(|_| refused())?;
    if pid == 0 || pid == std::process::id() {
        return Err(refused());
    }
    match ProcessRef::open(pid) {
        Ok(process) => Ok(*process.identity()),
        Err(error) => Err(format!("{text}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_time_at_all_is_refused_where_it_would_keep_things_from_working() {
        for name in ["max-idle", "start-timeout", "hibernate"] {
            for none in ["0", "0s", "0ms", "0.0"] {
                let refused = check(name, none).expect_err(name);
                assert!(
                    refused.contains(none) && refused.contains("write"),
                    "{refused}"
                );
            }
            assert_eq!(check(name, "1ms"), Ok(()), "{name}");
        }
        for name in ["linger", "grace", "stop-after"] {
            assert_eq!(check(name, "0"), Ok(()), "{name}");
        }
    }
}
