//! Durations and limits: flags, and variables with the same names. An invalid flag is an error. An invalid variable is
//! a warning and ignored, because the person who set it may not be the one who runs this command.

use std::ffi::OsString;
use std::time::Duration;

use kennel_core::lifetime;
use kennel_sys::process::{Identity, ProcessRef};
use kennel_sys::tree::Detached;

use crate::size::{DEFAULT_MAX_LINE, MIN_MAX_LINE};
use crate::{duration, size};

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Timers {
    /// Keep a shared server running this long after its last client left [default: 60s]
    #[arg(long, value_name = "D")]
    linger: Option<String>,

    /// Stop a shared server this long after its owner exited and its last client left [default: 5s]
    #[arg(long, value_name = "D")]
    grace: Option<String>,

    /// Disconnect clients whose process cannot be monitored after this much inactivity [default: 30m]
    #[arg(long, value_name = "D")]
    max_idle: Option<String>,

    /// Start a dedicated server if the daemon is not ready after this time [default: 5s]
    #[arg(long, value_name = "D")]
    start_timeout: Option<String>,

    /// Stop the server after this time without a request, or never; the next request starts it again [default: never]
    ///
    /// Sessions stay open; their next request takes longer by the start of the server. What the server had only in
    /// memory is lost, so this is off by default.
    #[arg(long, value_name = "D")]
    hibernate: Option<String>,

    /// How long to wait for the server's exit: after its stdin was closed, and after SIGTERM [default: 2s,2s]
    #[arg(long, value_name = "D[,D]")]
    stop_after: Option<String>,

    /// Maximum length of a line from the app or from the server [default: 128M]
    ///
    /// A longer line is skipped and answered with an error; the session goes on. For a shared server, the session that
    /// starts the daemon decides.
    #[arg(long, value_name = "SIZE")]
    max_line: Option<String>,

    /// Which detached processes (setsid) to keep when the server ends: auto, keep or end [default: auto]
    ///
    /// auto: keep services with a connection from outside the server's process tree, and known services (gpg-agent, adb,
    /// build daemons). keep: keep all. end: end all. `kennel ps` lists kept services, `kennel stop` stops them.
    #[arg(long, value_name = "WHICH")]
    detached: Option<String>,

    /// Stop a shared server without clients when this process exits
    #[arg(long, value_name = "PID", allow_hyphen_values = true)]
    owner_pid: Option<String>,
}

/// The values in force.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TimerValues {
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

/// A setting that `servers.toml` may have for a server, or for all.
#[derive(Debug)]
pub(crate) struct Timer {
    /// The name of its flag.
    pub(crate) name: &'static str,
    /// Whether a text is a valid value.
    pub(crate) check: fn(&str) -> Result<(), String>,
    /// Its syntax in `servers.toml`, for a value that is not a text.
    pub(crate) syntax: &'static str,
    flag: fn(&mut Timers) -> &mut Option<String>,
}

const DURATION: &str = "a duration, written as a string: \"30s\"";

/// The timers, in the order of their flags.
pub(crate) static TIMERS: [Timer; 8] = [
    Timer {
        name: "linger",
        check: |text| time(text).map(drop),
        syntax: DURATION,
        flag: |timers| &mut timers.linger,
    },
    Timer {
        name: "grace",
        check: |text| time(text).map(drop),
        syntax: DURATION,
        flag: |timers| &mut timers.grace,
    },
    Timer {
        name: "max-idle",
        check: |text| max_idle(text).map(drop),
        syntax: DURATION,
        flag: |timers| &mut timers.max_idle,
    },
    Timer {
        name: "start-timeout",
        check: |text| start_timeout(text).map(drop),
        syntax: DURATION,
        flag: |timers| &mut timers.start_timeout,
    },
    Timer {
        name: "hibernate",
        check: |text| hibernation(text).map(drop),
        syntax: "a duration or never, written as a string: \"30m\"",
        flag: |timers| &mut timers.hibernate,
    },
    Timer {
        name: "stop-after",
        check: |text| stop_after(text).map(drop),
        syntax: "one or two durations, written as a string: \"30s\" or \"2s,10s\"",
        flag: |timers| &mut timers.stop_after,
    },
    Timer {
        name: "max-line",
        check: |text| line_length(text).map(drop),
        syntax: "a size such as 128M, written as a string: \"128M\"",
        flag: |timers| &mut timers.max_line,
    },
    Timer {
        name: "detached",
        check: |text| detached(text).map(drop),
        syntax: "\"auto\", \"keep\" or \"end\"",
        flag: |timers| &mut timers.detached,
    },
];

impl Timers {
    /// Takes timers from `servers.toml`, unless a flag or a variable sets them.
    pub(crate) fn fill(&mut self, written: Vec<(&'static str, String)>) {
        for (name, text) in written {
            let Some(timer) = TIMERS.iter().find(|timer| timer.name == name) else {
                continue;
            };
            let flag = (timer.flag)(self);
            if flag.is_none() && of_variable(timer.name).is_none() {
                *flag = Some(text);
            }
        }
    }

    pub(crate) fn resolve(&self) -> Result<TimerValues, String> {
        let seconds = Duration::from_secs;
        Ok(TimerValues {
            linger: value("linger", &self.linger, time)?,
            grace: value("grace", &self.grace, time)?.unwrap_or(lifetime::GRACE),
            max_idle: value("max-idle", &self.max_idle, max_idle)?.unwrap_or(lifetime::MAX_IDLE),
            start_timeout: value("start-timeout", &self.start_timeout, start_timeout)?
                .unwrap_or(seconds(5)),
            hibernate: value("hibernate", &self.hibernate, hibernation)?.flatten(),
            stop_after: value("stop-after", &self.stop_after, stop_after)?
                .unwrap_or((seconds(2), seconds(2))),
            max_line: value("max-line", &self.max_line, line_length)?.unwrap_or(DEFAULT_MAX_LINE),
            detached: value("detached", &self.detached, detached)?.unwrap_or_default(),
            owner: value("owner-pid", &self.owner_pid, owner)?,
        })
    }
}

/// The value of a flag, else of its variable (`--max-idle`: `KENNEL_MAX_IDLE`).
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

/// The value of a flag's variable. An empty one counts as not set.
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
            "{text:?} would stop the server between any two requests; write never, or a duration such as 10m"
        )),
    }
}

/// How long a client may be inactive.
fn max_idle(text: &str) -> Result<Duration, String> {
    let words =
        "would disconnect such a client between any two requests; write a duration such as 30m";
    not_zero(text, words)
}

/// How long a daemon may take to start.
fn start_timeout(text: &str) -> Result<Duration, String> {
    let words = "leaves a daemon no time to start; write a duration such as 5s, or `--share never` to run without a daemon";
    not_zero(text, words)
}

fn not_zero(text: &str, words: &str) -> Result<Duration, String> {
    let time = time(text)?;
    match time.is_zero() {
        false => Ok(time),
        true => Err(format!("{text:?} {words}")),
    }
}

pub(crate) fn detached(text: &str) -> Result<Detached, String> {
    match text.parse() {
        Ok(detached @ (Detached::Auto | Detached::Keep | Detached::End)) => Ok(detached),
        _ => Err(format!("{text:?} is not one of auto, keep, end")),
    }
}

fn time(text: &str) -> Result<Duration, String> {
    duration::parse(text).map_err(|error| error.to_string())
}

/// The first two steps of the stop ladder; one duration stands for both.
fn stop_after(text: &str) -> Result<(Duration, Duration), String> {
    let (first, second) = text.split_once(',').unwrap_or((text, text));
    Ok((time(first)?, time(second)?))
}

fn line_length(text: &str) -> Result<usize, String> {
    let bytes = size::parse(text).map_err(|error| error.to_string())?;
    match bytes < MIN_MAX_LINE {
        true => Err(format!(
            "{text} is too short: the minimum is {}K",
            MIN_MAX_LINE / 1024
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

    fn check(name: &str, text: &str) -> Result<(), String> {
        let timer = TIMERS.iter().find(|timer| timer.name == name).unwrap();
        (timer.check)(text)
    }

    #[test]
    fn a_duration_of_zero_is_refused_where_it_would_break_something() {
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
