//! Whether a client may be served here. What it may do is decided by what the kernel says of its process, never by its
//! own word: a confined process must not have anything done for it outside its confinement.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::process::ExitCode;
use std::rc::Rc;

use kennel_core::hello::{ClientHello, Text};
use kennel_sys::confinement::Confinement;
use kennel_sys::process::ProcessRef;

use super::ClientConn;
use crate::confined;
use crate::daemon::daemon_state::DaemonState;
use crate::daemon::server::os;
use crate::former_key;
use crate::key;
use crate::key::rights;
use crate::key::variables::Always;
use crate::start_error::is_shortage;

/// Why a client is not served.
pub(super) enum Refusal {
    /// It must go dedicated; why, for people.
    Apart(String),
    /// This daemon lacks what it takes to look at the client, such as descriptors: it may come back later.
    Shortage(io::Error),
}

impl Refusal {
    /// Why, for people.
    fn words(self) -> String {
        match self {
            Refusal::Apart(why) => why,
            Refusal::Shortage(error) => format!("this daemon cannot look at it: {error}"),
        }
    }
}

impl<T: Into<String>> From<T> for Refusal {
    fn from(why: T) -> Refusal {
        Refusal::Apart(why.into())
    }
}

/// Whether a client with this hello is served, which was looked at when it came. Both looks count, and both read everything:
/// by executing a program with more rights (setuid, file capabilities, another label) a process can become less confined, while
/// another one that stays confined speaks on its connection; or more, in ways that it could not without.
pub(super) fn of_hello(
    daemon: &DaemonState,
    link: &ClientConn,
    hello: &ClientHello,
    when_it_came: Early,
) -> Result<(), Refusal> {
    is_confined_as_we_are(&when_it_came.0?)?;
    let theirs = confinement_of(link)?;
    hello.check()?;
    fits(daemon, hello, &theirs)?;
    let clients = daemon.clients.borrow();
    let is_taken = |other: &ClientConn| other.has_session(&hello.session) && !is_same(link, other);
    match clients.values().any(|other| is_taken(other)) {
        true => Err("its session is another process's".into()),
        false => Ok(()),
    }
}

/// Whether a client without a hello may use what the first client with a hello wanted; why not, for people. As in
/// [`of_hello`], what it was when it came counts too.
pub(super) fn of_bare(
    daemon: &DaemonState,
    link: &ClientConn,
    when_it_came: Early,
) -> Result<(), String> {
    is_confined_as_we_are(&when_it_came.0.map_err(Refusal::words)?)?;
    may_have_a_server(link)?;
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

/// Whether a server may be started for this client, which may have confined itself since it was let in: only if it is confined
/// as this daemon is, for so were all who were let in. Why not, for people.
///
/// Not its key: that names the program as it was found then, and a server may be started anew because its files changed.
pub(in crate::daemon) fn may_have_a_server(link: &ClientConn) -> Result<(), String> {
    is_confined_as_we_are(&confinement_of(link).map_err(Refusal::words)?)
}

fn is_confined_as_we_are(theirs: &Confinement) -> Result<(), String> {
    match *theirs == *confined::ours()? {
        true => Ok(()),
        false => Err("it is not confined as this daemon is".to_owned()),
    }
}

/// Whether the program that a client names may be run for an upgrade: only if the client could do all by itself that
/// this daemon can, and is one of ours.
pub(in crate::daemon) fn may_lend_its_program(daemon: &DaemonState, link: &ClientConn) -> bool {
    let (Some(hello), Ok(theirs), Ok(ours)) =
        (link.hello.get(), confinement_of(link), confined::ours())
    else {
        return false;
    };
    fits(daemon, hello, &theirs).is_ok() && theirs.is_as_free_as(ours)
}

/// Whether the key of a client with this hello and confinement is this daemon's; why not, for people.
fn fits(daemon: &DaemonState, hello: &ClientHello, theirs: &Confinement) -> Result<(), String> {
    // First: its key cannot be ours then, and to compute it means to look at paths of its choice, outside its confinement.
    is_confined_as_we_are(theirs)?;
    if wants_the_same_as_the_first(daemon, hello) {
        return Ok(());
    }
    let Some(hash) = key::hash_of_hello(hello, theirs) else {
        return Err("another version of Kennel made its key".to_owned());
    };
    if hash.starts_with(daemon.meeting.key()) && is_the_present_one(daemon, &hash) {
        return Ok(());
    }
    // A daemon that an earlier build started has the key of that build, which tells less apart: it serves those who have
    // the same key now, whatever that is, as the first of them.
    let former = former_key::of_hello(hello, theirs);
    let at_former = former.iter().any(|key| key == daemon.meeting.key());
    // Its servers may be of clients that this build has not let in: theirs must have the same rights.
    let at_former = at_former
        && starters(daemon)
            .iter()
            .all(|it| have_same_rights(hello, it));
    match at_former && is_the_present_one(daemon, &hash) {
        true => Ok(()),
        false => Err("its key is not this daemon's".to_owned()),
    }
}

/// Whether the whole hash of a client's key is the one of all clients here: that of the first. The daemon itself knows only
/// the digits that it was started with.
fn is_the_present_one(daemon: &DaemonState, hash: &str) -> bool {
    let mut present = daemon.present_hash.borrow_mut();
    present.get_or_insert_with(|| hash.to_owned()) == hash
}

/// Whether all that a key is made of is the same as the first client's, which has this daemon's key. Most clients' is, and
/// to compute a key means to look for the program again. Both are confined as this daemon is.
fn wants_the_same_as_the_first(daemon: &DaemonState, hello: &ClientHello) -> bool {
    let first = daemon.first_hello.borrow();
    let (Some(first), Ok(ours)) = (&*first, confined::ours()) else {
        return false;
    };
    let same = (&hello.key, &hello.env) == (&first.key, &first.env)
        && (&hello.spec.command, &hello.spec.cwd) == (&first.spec.command, &first.spec.cwd);
    let fits = || {
        key::hash_of_hello(first, ours).is_some_and(|hash| {
            hash.starts_with(daemon.meeting.key()) && is_the_present_one(daemon, &hash)
        })
    };
    same && *daemon.first_fits.get_or_init(fits)
}

/// The hellos with which servers of this daemon were started, or would be.
fn starters(daemon: &DaemonState) -> Vec<Rc<ClientHello>> {
    let servers = daemon.servers.borrow();
    let started = servers
        .values()
        .map(|server_io| Rc::clone(&server_io.hello));
    started.chain(daemon.first_hello.borrow().clone()).collect()
}

/// Whether two sessions have the same credentials, get packages from the same registries and, for a server in the table, have
/// the same of what it reads.
fn have_same_rights(one: &ClientHello, other: &ClientHello) -> bool {
    rights(one) == rights(other)
}

/// The variables that count whatever somebody said.
fn rights(hello: &ClientHello) -> Vec<(OsString, OsString)> {
    let command: Vec<OsString> = hello.spec.command.iter().map(os).collect();
    let always = Always::of(&command);
    let pair = |(name, value): &(Text, Text)| (os(name), os(value));
    let env: Vec<(OsString, OsString)> = hello.env.iter().map(pair).collect();
    let counts = |(name, value): &&(OsString, OsString)| always.counts(name, value, &env);
    let mut rights: Vec<_> = env.iter().filter(counts).cloned().collect();
    rights.sort_unstable();
    rights
}

/// What confined a client when it came.
pub(super) struct Early(Result<Confinement, Refusal>);

/// Looks at a client that has just come, while it looks at us.
pub(super) fn at_first_sight(link: &ClientConn) -> Early {
    Early(confinement_of(link))
}

/// What confines the process at the other end of the connection.
fn confinement_of(link: &ClientConn) -> Result<Confinement, Refusal> {
    let of_shortage = |error: &io::Error| error.raw_os_error().is_some_and(is_shortage);
    let Some(process) = link.peer.as_ref() else {
        // A peer is referred to by a descriptor, too.
        return Err(match File::open("/dev/null") {
            Err(error) if of_shortage(&error) => Refusal::Shortage(error),
            _ => "its process cannot be seen".into(),
        });
    };
    // With its children: it would start its server where they are.
    let theirs = match Confinement::of_it_and_its_children(process, confined::ours()?) {
        Ok(theirs) => theirs,
        Err(error) if of_shortage(&error) => return Err(Refusal::Shortage(error)),
        Err(error) => {
            return Err(format!("what confines its process cannot be read: {error}").into());
        }
    };
    match theirs.is_filtered() {
        true => Err(confined::FILTERED.into()),
        false => Ok(theirs),
    }
}

/// Whether two connections are of one process.
fn is_same(one: &ClientConn, other: &ClientConn) -> bool {
    let identity = |link: &ClientConn| link.peer.as_ref().map(ProcessRef::identity).copied();
    match (identity(one), identity(other)) {
        (Some(one), Some(other)) => one.same_process(&other),
        _ => false,
    }
}

/// `kennel daemon --keys`: prints the key, and the former keys, the newest version first, of a client that says the hello on stdin and is confined as
/// this process is. For tests, and for whoever wonders why two sessions do not share.
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
        None => crate::fail("stdin is no hello with a key of this version"),
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
