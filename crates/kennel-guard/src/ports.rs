//! Who has a port, in words for the person whose server could not have it (lesson 41).

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use kennel_sys::escape;
use kennel_sys::net;
use kennel_sys::process::ProcessRef;

/// More of a command is not shown.
const LONGEST_COMMAND: usize = 200;

/// Somebody who listens on a port. Displayed: `pid 4711 (python3 -m http.server 8080, for 5 min)`.
#[derive(Debug)]
pub struct PortHolder {
    /// Where it listens.
    pub address: IpAddr,
    /// Whose the socket is.
    pub uid: u32,
    /// The process; `None` if it does not let us see that.
    pub process: Option<ProcessRef>,
}

/// Who listens on `port`, on whichever address: one for each socket and process.
pub fn port_holders(port: u16) -> io::Result<Vec<PortHolder>> {
    let mut holders = Vec::new();
    for listener in net::listeners()? {
        if listener.address.port() != port {
            continue;
        }
        let holder = |process| PortHolder {
            address: listener.address.ip(),
            uid: listener.uid,
            process,
        };
        let processes = net::holders(&[listener.inode])?;
        match processes.is_empty() {
            // Closed since, or held by somebody who hides.
            true if !is_open(listener.inode)? => {}
            true => holders.push(holder(None)),
            false => holders.extend(processes.into_iter().map(|process| holder(Some(process)))),
        }
    }
    Ok(holders)
}

fn is_open(inode: u64) -> io::Result<bool> {
    let mut now = net::listeners()?.into_iter();
    Ok(now.any(|listener| listener.inode == inode))
}

impl PortHolder {
    /// What the process was started as, cut to a line's length and escaped for a terminal.
    pub fn command(&self) -> Option<String> {
        let line = self.process.as_ref()?.command_line()?.join(" ");
        let line: String = line.chars().take(LONGEST_COMMAND).collect();
        Some(escape::printable(&line))
    }
}

impl fmt::Display for PortHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(process) = &self.process else {
            return write!(f, "a process of uid {} that we may not look at", self.uid);
        };
        write!(f, "pid {}", process.pid())?;
        let command = self.command().unwrap_or_else(|| "?".to_owned());
        match process.age() {
            Some(age) => write!(f, " ({command}, for {})", rounded(age)),
            None => write!(f, " ({command})"),
        }
    }
}

/// A duration as people say it.
fn rounded(duration: Duration) -> String {
    match duration.as_secs() {
        seconds @ ..120 => format!("{seconds} s"),
        seconds @ ..7_200 => format!("{} min", seconds / 60),
        seconds @ ..172_800 => format!("{} h", seconds / 3_600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_has_a_port_is_named_with_pid_and_command() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let holders = port_holders(port).unwrap();
        assert_eq!(holders.len(), 1);
        let words = holders[0].to_string();
        assert!(
            words.starts_with(&format!("pid {} (", std::process::id())),
            "{words}"
        );
        assert!(words.contains("whoever_has_a_port"), "{words}");
        assert!(words.ends_with(" s)"), "{words}");
        drop(listener);
        assert!(port_holders(port).unwrap().is_empty());
    }

    #[test]
    fn one_that_hides_is_told_by_its_uid() {
        let holder = PortHolder {
            address: "::1".parse().unwrap(),
            uid: 7,
            process: None,
        };
        assert_eq!(
            holder.to_string(),
            "a process of uid 7 that we may not look at"
        );
    }
}
