//! The processes that listen on a port, as text for the user whose server could not bind it (lesson 41).

use std::fmt;
use std::io;
use std::net::IpAddr;

use kennel_sys::duration::rounded;
use kennel_sys::escape;
use kennel_sys::net;
use kennel_sys::process::ProcessRef;

/// Maximum length of a displayed command line.
const MAX_COMMAND: usize = 200;

/// A process that listens on a port. Displayed: `pid 4711 (python3 -m http.server 8080, for 5 min)`.
#[derive(Debug)]
pub struct PortHolder {
    /// The address that it listens on.
    pub address: IpAddr,
    /// The uid of the socket's owner.
    pub uid: u32,
    /// The process; `None` if we may not see it.
    pub process: Option<ProcessRef>,
}

/// The listeners on `port`, at any address: one for each socket and process.
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
            // The socket was closed since, or its process is hidden.
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
    /// The command line of the process, truncated and escaped for a terminal.
    pub fn command(&self) -> Option<String> {
        let line = self.process.as_ref()?.command_line()?.join(" ");
        let line: String = line.chars().take(MAX_COMMAND).collect();
        Some(escape::printable(&line))
    }
}

impl fmt::Display for PortHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(process) = &self.process else {
            return write!(f, "a hidden process of uid {}", self.uid);
        };
        write!(f, "pid {}", process.pid())?;
        let command = self.command().unwrap_or_else(|| "?".to_owned());
        match process.age() {
            Some(age) => write!(f, " ({command}, for {})", rounded(age)),
            None => write!(f, " ({command})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_holder_is_shown_with_pid_and_command() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let holders = port_holders(port).unwrap();
        assert_eq!(holders.len(), 1);
        let words = holders[0].to_string();
        assert!(
            words.starts_with(&format!("pid {} (", std::process::id())),
            "{words}"
        );
        assert!(words.contains("kennel_guard"), "{words}");
        assert!(words.ends_with(" s)"), "{words}");
        drop(listener);
        assert!(port_holders(port).unwrap().is_empty());
    }

    #[test]
    fn a_hidden_process_is_shown_by_its_uid() {
        let holder = PortHolder {
            address: "::1".parse().unwrap(),
            uid: 7,
            process: None,
        };
        assert_eq!(holder.to_string(), "a hidden process of uid 7");
    }
}
