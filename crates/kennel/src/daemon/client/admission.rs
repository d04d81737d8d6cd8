//! Whether a client is served. The kernel's facts about its process decide, never its own word: the daemon must do nothing
//! for a confined process outside its confinement.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::process::ExitCode;
use std::rc::Rc;

use kennel_core::hello::{ClientHello, Text};
use kennel_sys::confinement::Confinement;
use kennel_sys::process::ProcessRef;
use serde::{Deserialize, Serialize};

use super::ClientConn;
use crate::confined;
use crate::daemon::daemon_state::DaemonState;
use crate::daemon::server::to_os_string;
use crate::former_key;
use crate::key;
use crate::key::rights;
use crate::key::variables::Always;
use crate::start_error::is_shortage;

/// Why a client is not served.
pub(super) enum Refusal {
    /// It must go dedicated. The reason is for people.
    Dedicated(String),
    /// The daemon lacks something, such as descriptors, to check the client. It may come back later.
    Shortage(io::Error),
}

impl Refusal {
    /// The reason, for people.
    fn reason(self) -> String {
        match self {
            Refusal::Dedicated(why) => why,
            Refusal::Shortage(error) => format!("this daemon cannot check its key: {error}"),
        }
    }
}

impl<T: Into<String>> From<T> for Refusal {
    fn from(why: T) -> Refusal {
        Refusal::Dedicated(why.into())
    }
}

/// Whether a client with this hello is served. It was checked on arrival and is checked again; both count and read
/// everything. A process can become less confined when it executes a program with more rights (setuid, file capabilities,
/// another label) while a confined one uses its connection; and more confined, in ways that it could not without.
pub(super) fn of_hello(
    daemon: &DaemonState,
    conn: &ClientConn,
    hello: &ClientHello,
    on_arrival: ArrivalCheck,
) -> Result<(), Refusal> {
    on_arrival.0?;
    let theirs = confinement_of(conn)?;
    hello.check()?;
    has_key_of_daemon(daemon, hello, &theirs)?;
    let clients = daemon.clients.borrow();
    let is_taken = |other: &ClientConn| other.has_session(&hello.session) && !is_same(conn, other);
    match clients.values().any(|other| is_taken(other)) {
        true => Err("its session belongs to another process".into()),
        false => Ok(()),
    }
}

/// Whether a client without a hello is served like the first client with one; why not, for people. As in [`of_hello`], the
/// check on arrival counts too.
pub(super) fn of_bare(
    daemon: &DaemonState,
    conn: &ClientConn,
    on_arrival: ArrivalCheck,
) -> Result<(), String> {
    on_arrival.0.map_err(Refusal::reason)?;
    may_have_a_server(conn)?;
    let first = daemon.first_hello.borrow();
    let mut env = first.iter().flat_map(|first| first.env.iter());
    let gives_rights =
        |(name, value): &&(Text, Text)| rights::are_given_by(name.as_bytes(), value.as_bytes());
    match env.find(gives_rights) {
        Some((name, _)) => Err(format!(
            "the environment of this server holds a credential ({name:?}), which only sessions of `kennel run` may use"
        )),
        None => Ok(()),
    }
}

/// Checks whether a server may be started for this client, which may have confined itself since it was accepted: its
/// confinement must equal the daemon's. `Err`: the reason, for people.
///
/// Its key is not checked: it names the program as it was found then, and a server may be started again because its files
/// changed.
pub(in crate::daemon) fn may_have_a_server(conn: &ClientConn) -> Result<(), String> {
    is_confined_as_we_are(&confinement_of(conn).map_err(Refusal::reason)?)
}

const DIFFERENT_CONFINEMENT: &str = "its confinement differs from this daemon's";

fn is_confined_as_we_are(theirs: &Confinement) -> Result<(), String> {
    match *theirs == *confined::ours()? {
        true => Ok(()),
        false => Err(DIFFERENT_CONFINEMENT.to_owned()),
    }
}

/// Whether the program that a client names may be run for an upgrade: only if the client is of this daemon's key, and could
/// do by itself all that the daemon can.
pub(in crate::daemon) fn may_offer_program(daemon: &DaemonState, conn: &ClientConn) -> bool {
    let (Some(hello), Ok(theirs), Ok(ours)) =
        (conn.hello.get(), confinement_of(conn), confined::ours())
    else {
        return false;
    };
    has_key_of_daemon(daemon, hello, &theirs).is_ok() && theirs.permits_all_of(ours)
}

/// Whether a client with this hello and confinement has the daemon's key; why not, for people.
fn has_key_of_daemon(
    daemon: &DaemonState,
    hello: &ClientHello,
    theirs: &Confinement,
) -> Result<(), String> {
    // First: with another confinement the key is another one, and to compute it reads paths of the client's choice, outside
    // its confinement.
    is_confined_as_we_are(theirs)?;
    if has_key_fields_of_first(daemon, hello) {
        return Ok(());
    }
    let Some(hash) = key::hash_of_hello(hello, theirs) else {
        return Err("its key was computed by another version of Kennel".to_owned());
    };
    if hash.starts_with(daemon.key_dir.key()) && is_current_hash(daemon, &hash) {
        return Ok(());
    }
    // A daemon of an earlier build has that build's key, which distinguishes less. It serves clients that have the key of
    // the first of them now.
    let former = former_key::of_hello(hello, theirs);
    let at_former = former.iter().any(|key| key == daemon.key_dir.key());
    // Its servers may be of clients that this build did not admit: theirs must have the same rights.
    let at_former = at_former
        && hellos_of_servers(daemon)
            .iter()
            .all(|it| have_same_rights(hello, it));
    match at_former && is_current_hash(daemon, &hash) {
        true => Ok(()),
        false => Err("its key differs from this daemon's".to_owned()),
    }
}

/// Whether the full hash of a client's key is that of the first client. The daemon was started with only some digits of it.
fn is_current_hash(daemon: &DaemonState, hash: &str) -> bool {
    let mut present = daemon.key_hash.borrow_mut();
    present.get_or_insert_with(|| hash.to_owned()) == hash
}

/// Whether the hello has the same key fields as the first client's, which has the daemon's key. Most have, and to compute a
/// key means to find the program again. Both are confined as the daemon is.
fn has_key_fields_of_first(daemon: &DaemonState, hello: &ClientHello) -> bool {
    let first = daemon.first_hello.borrow();
    let (Some(first), Ok(ours)) = (&*first, confined::ours()) else {
        return false;
    };
    let same = (&hello.key, &hello.env) == (&first.key, &first.env)
        && (&hello.spec.command, &hello.spec.cwd) == (&first.spec.command, &first.spec.cwd);
    let has_key_of_daemon = || {
        key::hash_of_hello(first, ours).is_some_and(|hash| {
            hash.starts_with(daemon.key_dir.key()) && is_current_hash(daemon, &hash)
        })
    };
    same && *daemon.first_has_key.get_or_init(has_key_of_daemon)
}

/// The hellos with which servers of this daemon were started, or would be.
fn hellos_of_servers(daemon: &DaemonState) -> Vec<Rc<ClientHello>> {
    let servers = daemon.servers.borrow();
    let started = servers
        .values()
        .map(|server_io| Rc::clone(&server_io.hello));
    started.chain(daemon.first_hello.borrow().clone()).collect()
}

/// Whether two sessions have the same credentials, the same package registries and, for a server in the table, the same of
/// what it reads.
fn have_same_rights(one: &ClientHello, other: &ClientHello) -> bool {
    rights(one) == rights(other)
}

/// The variables that count in every key.
fn rights(hello: &ClientHello) -> Vec<(OsString, OsString)> {
    let command: Vec<OsString> = hello.spec.command.iter().map(to_os_string).collect();
    let always = Always::of(&command);
    let pair = |(name, value): &(Text, Text)| (to_os_string(name), to_os_string(value));
    let env: Vec<(OsString, OsString)> = hello.env.iter().map(pair).collect();
    let counts = |(name, value): &&(OsString, OsString)| always.counts(name, value, &env);
    let mut rights: Vec<_> = env.iter().filter(counts).cloned().collect();
    rights.sort_unstable();
    rights
}

/// Whether a client was confined as the daemon is when it connected; why it is not served, if not.
pub(super) struct ArrivalCheck(Result<(), Refusal>);

/// An [`ArrivalCheck`] in a snapshot.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ArrivalSnapshot {
    /// It was confined as the daemon was. With the facts about that, because another program may be confined in another
    /// way.
    Same(Vec<String>),
    Dedicated(String),
    /// The check failed with the system's error number.
    Shortage(i32),
}

/// Checks a client that has just connected.
pub(super) fn check_on_arrival(conn: &ClientConn) -> ArrivalCheck {
    let theirs = confinement_of(conn);
    ArrivalCheck(theirs.and_then(|theirs| Ok(is_confined_as_we_are(&theirs)?)))
}

impl ArrivalCheck {
    /// The check of a client that connected to an older build, which did not hand its check over.
    pub(super) fn unknown() -> ArrivalCheck {
        ArrivalCheck(Err(
            "its confinement at the time of the connection is unknown".into(),
        ))
    }

    pub(super) fn snapshot(&self) -> ArrivalSnapshot {
        match (&self.0, confined::ours()) {
            (Ok(()), Ok(ours)) => ArrivalSnapshot::Same(ours.facts()),
            (Ok(()), Err(why)) => ArrivalSnapshot::Dedicated(why.to_owned()),
            (Err(Refusal::Dedicated(why)), _) => ArrivalSnapshot::Dedicated(why.clone()),
            (Err(Refusal::Shortage(error)), _) => {
                ArrivalSnapshot::Shortage(error.raw_os_error().unwrap_or_default())
            }
        }
    }

    pub(super) fn restore(snapshot: ArrivalSnapshot) -> ArrivalCheck {
        ArrivalCheck(match snapshot {
            ArrivalSnapshot::Same(facts) => match confined::ours() {
                Ok(ours) if ours.facts() == facts => Ok(()),
                Ok(_) => Err(DIFFERENT_CONFINEMENT.into()),
                Err(why) => Err(why.into()),
            },
            ArrivalSnapshot::Dedicated(why) => Err(why.into()),
            ArrivalSnapshot::Shortage(errno) => {
                Err(Refusal::Shortage(io::Error::from_raw_os_error(errno)))
            }
        })
    }
}

/// The confinement of the process at the other end of the connection.
fn confinement_of(conn: &ClientConn) -> Result<Confinement, Refusal> {
    let of_shortage = |error: &io::Error| error.raw_os_error().is_some_and(is_shortage);
    let Some(process) = conn.peer.as_ref() else {
        // A process reference needs a descriptor, too.
        return Err(match File::open("/dev/null") {
            Err(error) if of_shortage(&error) => Refusal::Shortage(error),
            _ => "its process is not visible".into(),
        });
    };
    // With its children: it would start its server where they are.
    let theirs = match Confinement::of_process_and_children(process, confined::ours()?) {
        Ok(theirs) => theirs,
        Err(error) if of_shortage(&error) => return Err(Refusal::Shortage(error)),
        Err(error) => {
            return Err(format!("the confinement of its process cannot be read: {error}").into());
        }
    };
    match theirs.is_filtered() {
        true => Err(confined::FILTERED.into()),
        false => Ok(theirs),
    }
}

/// Whether two connections are of one process.
fn is_same(one: &ClientConn, other: &ClientConn) -> bool {
    let identity = |conn: &ClientConn| conn.peer.as_deref().map(ProcessRef::identity).copied();
    match (identity(one), identity(other)) {
        (Some(one), Some(other)) => one.same_process(&other),
        _ => false,
    }
}

/// `kennel daemon --keys`: prints the key and the former keys, newest version first, of a client with the hello on stdin
/// and this process's confinement. For tests, and to find out why two sessions do not share.
#[expect(clippy::print_stdout, reason = "somebody asks")]
pub(in crate::daemon) fn print_keys() -> ExitCode {
    let mut line = Vec::new();
    let read = std::io::stdin().read_to_end(&mut line);
    let ours = match (read, confined::ours()) {
        (Ok(_), Ok(ours)) => ours,
        (Err(error), _) => return crate::fail(&format!("stdin cannot be read: {error}")),
        (_, Err(why)) => return crate::fail(why),
    };
    let hello = ClientHello::parse(line.trim_ascii_end());
    let hello = hello.and_then(Result::ok);
    let keys = hello.and_then(|hello| {
        let key = key::of_hello(&hello, ours)?;
        Some([vec![key], former_key::of_hello(&hello, ours)].concat())
    });
    match keys {
        Some(keys) => {
            println!("{}", keys.join(" "));
            ExitCode::SUCCESS
        }
        None => crate::fail("stdin is not a hello with a key of this version"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(env: &str) -> ClientHello {
        let line = format!(
            r#"!hello {{"version":"0","protocol":1,"pid":1,"identity":"","session":"s","spec":{{"command":["npx","y"],"cwd":"/","ladder":[1,1]}},"env":[{env}]}}"#
        );
        ClientHello::parse(line.as_bytes()).unwrap().unwrap()
    }

    #[test]
    fn sessions_of_a_former_key_have_the_same_rights_only_with_the_same_credentials() {
        let same = |one: &str, other: &str| have_same_rights(&hello(one), &hello(other));
        let token = |value| format!(r#"["CLAUDE_CODE_OAUTH_TOKEN","{value}"]"#);
        assert!(same(&token("1"), &token("1")));
        assert!(!same(&token("1"), &token("2")));
        assert!(!same(&token("1"), ""));
        assert!(!same(r#"["npm_config_registry","https://one"]"#, ""));
        assert!(!same(r#"["DB","pg://a:1@h"]"#, r#"["DB","pg://a:2@h"]"#));
        let both = format!(r#"["EDITOR","vi"],{}"#, token("1"));
        assert!(
            same(&both, &token("1")),
            "other variables do not matter here"
        );
    }
}
