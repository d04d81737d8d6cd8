//! Finding the daemon of a key, or starting it: one daemon per key, however many shims look at once (rule 1).
//!
//! Which step is next, and when to give up, is decided by [`kennel_core::election`]; here it is [obeyed](obey): doors are
//! [knocked at](connect), locks taken, daemons [greeted](hello), [started](spawn) and, where they are [stuck] or were
//! stopped [before they were ready](newborn), ended.
//!
//! What cannot be an event here, and is looked at again and again within a deadline (rule 10): a lock
//! others hold, a socket whose queue is full, a daemon that may be stuck. Therefore it happens on a thread of its
//! own, and the shim hears its app meanwhile. Only the first knock is the shim's: a daemon that is there
//! answers sooner than a thread begins.

mod connect;
mod former;
mod hello;
mod newborn;
mod obey;
mod pause;
mod spawn;
pub(crate) mod stuck;
#[cfg(test)]
mod tests;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kennel_core::election::DaemonReply;
use kennel_core::hello::ClientHello;
use kennel_sys::events::Waker;
use kennel_sys::io::Stream;
use kennel_sys::process::{Identity, ProcessRef};

use crate::key_dir::KeyDir;
use connect::{Door, Reached};
pub(crate) use former::FormerKey;
use former::FormerPlace;
use hello::{Answer, Asked};
use obey::Obedient;

/// How long the shim itself waits for a daemon that is there. The app does not notice.
const AT_ONCE: Duration = Duration::from_millis(10);

/// Beyond two starts, the longest that an election takes: it begins again for 20 s, then waits for a lock, an old daemon and an
/// answer, 17 s at most. The rest is margin.
const LONGEST: Duration = Duration::from_secs(60);

/// What a shim wants: a daemon, and to be its client.
#[derive(Debug)]
pub(crate) struct Wanted {
    /// Which daemon.
    pub(crate) key: String,
    /// Or the one at a key of earlier builds.
    pub(crate) former: Arc<FormerKey>,
    /// What to say to it first.
    pub(crate) hello: Arc<ClientHello>,
    /// And next, if that is known.
    pub(crate) greeting: Option<Vec<u8>>,
    /// How long it is to live, if it has to be started.
    pub(crate) policy: Policy,
    /// How long it may take to be ready, if it has to be started.
    pub(crate) start_timeout: Duration,
    /// A daemon that leaves this shim without an answer, longer than [`stuck::Watch`] allows. It is asked once
    /// more, and ended if it is stuck.
    pub(crate) suspect: Option<ProcessRef>,
}

impl Wanted {
    /// Looks at a key of earlier builds. A daemon of such a build is told nothing of the session before it is known to check
    /// keys.
    fn meet_at_former(&mut self, place: &FormerPlace) {
        self.key = place.key.clone();
        self.hello = Arc::clone(&place.hello);
        self.greeting = None;
    }

    fn words(&self) -> Asked {
        Asked::hello(&self.hello, self.greeting.as_deref())
    }
}

/// What a daemon was told together with the hello.
#[derive(Debug)]
pub(crate) struct Greeted {
    /// The line, without its newline.
    pub(crate) line: Vec<u8>,
    /// What of it the socket has not taken yet.
    pub(crate) unsaid: Vec<u8>,
}

/// How long a daemon lives, and for whom.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Policy {
    pub(crate) linger: Duration,
    pub(crate) grace: Duration,
    pub(crate) max_idle: Duration,
    pub(crate) owner: Option<Identity>,
    /// The longest line that it takes, in bytes.
    pub(crate) max_line: usize,
}

/// How an election ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// A daemon took us for its client; both have said hello.
    Connected {
        /// What the daemon said behind its hello is still in it.
        socket: Stream,
        /// The daemon, where its process can be seen.
        daemon: Option<ProcessRef>,
        /// What it was told already.
        greeted: Option<Greeted>,
        /// Which daemon of this key it is.
        #[cfg_attr(
            not(test),
            expect(dead_code, reason = "tests tell daemons apart by it")
        )]
        generation: String,
    },
    /// The suspect answers: whoever is its client stays so.
    NotStuck,
    /// No daemon can be had.
    Solo {
        /// Why, for the person who wonders.
        why: String,
    },
}

/// What comes of the wish for a daemon.
#[derive(Debug)]
pub(crate) enum Elected {
    /// One that was there has answered.
    AtOnce(Outcome),
    Pending(Pending),
}

/// An election under way; dropping it abandons it, and frees what it holds.
#[derive(Debug)]
pub(crate) struct Pending {
    shared: Arc<Shared>,
    /// When its thread counts as hung.
    until: Instant,
}

#[derive(Debug)]
struct Shared {
    decided: Arc<Waker>,
    abandoned: Waker,
    outcome: Mutex<Option<Outcome>>,
}

/// Looks for a daemon that is there; else begins an election, on a thread of its own, and calls `meanwhile`.
pub(crate) fn elect(wanted: Wanted, meanwhile: impl FnOnce()) -> io::Result<Elected> {
    elect_starting(wanted, crate::this_build::itself(), meanwhile)
}

/// [`elect`], with another program to be the daemon.
fn elect_starting(
    mut wanted: Wanted,
    program: PathBuf,
    meanwhile: impl FnOnce(),
) -> io::Result<Elected> {
    let former = Arc::clone(&wanted.former);
    if let Some(place) = former.decided() {
        wanted.meet_at_former(place);
    }
    let mut found = at_once(&wanted);
    match found {
        AtOnce::Nobody => {
            if let Some(place) = former.look(&wanted.hello) {
                wanted.meet_at_former(place);
                found = at_once(&wanted);
            }
        }
        AtOnce::Connected(_) | AtOnce::Begun(..) => former.is_not_used(),
    }
    let begun = match found {
        AtOnce::Connected(outcome) => return Ok(Elected::AtOnce(outcome)),
        AtOnce::Begun(reached, asked) => Some((reached, asked)),
        AtOnce::Nobody => None,
    };
    let shared = Arc::new(Shared {
        decided: Arc::new(Waker::new()?),
        abandoned: Waker::new()?,
        outcome: Mutex::new(None),
    });
    let pending = Pending {
        shared: shared.clone(),
        until: Instant::now() + LONGEST + 2 * wanted.start_timeout,
    };
    std::thread::Builder::new()
        .name("election".to_owned())
        .spawn(move || {
            let election = Obedient::new(wanted, begun, program, &shared.abandoned);
            let outcome = catch_unwind(AssertUnwindSafe(|| election.run()));
            // The shim waits for an outcome, whatever happens here.
            let why = "the election failed; please report it".to_owned();
            let outcome = outcome.unwrap_or(Outcome::Solo { why });
            *shared.outcome.lock().expect("nobody panics holding it") = Some(outcome);
            shared.decided.wake();
        })?;
    meanwhile();
    Ok(Elected::Pending(pending))
}

/// What can be had without waiting long, and hence without a thread.
enum AtOnce {
    Connected(Outcome),
    /// Somebody is there, and has not answered yet.
    Begun(Reached, Asked),
    Nobody,
}

/// A daemon that is there answers sooner than a thread is made to wait for it.
fn at_once(wanted: &Wanted) -> AtOnce {
    if wanted.suspect.is_some() {
        return AtOnce::Nobody;
    }
    // Ready before it is woken: it has all of it when it has seen who we are.
    let mut asked = wanted.words();
    let Ok(key_dir) = KeyDir::ensure(&wanted.key) else {
        return AtOnce::Nobody;
    };
    let Door::Open(reached) = connect::knock(&key_dir) else {
        return AtOnce::Nobody;
    };
    match asked.answer_within(&reached.socket, AT_ONCE) {
        Ok(Some(Answer::Said(DaemonReply::Hello(hello)))) => {
            AtOnce::Connected(Outcome::Connected {
                socket: reached.socket,
                daemon: reached.daemon,
                greeted: asked.greeted(),
                generation: hello.generation,
            })
        }
        Ok(None) => AtOnce::Begun(reached, asked),
        // Ending, or no daemon of ours: that takes longer.
        Ok(Some(_)) | Err(_) => AtOnce::Nobody,
    }
}

impl Pending {
    /// The outcome, once: `None` while it is undecided, and after it was taken. When it is [overdue](Self::overdue_at), its
    /// thread hangs in a system call, and the session does without.
    pub(crate) fn take(&self) -> Option<Outcome> {
        let mut outcome = self
            .shared
            .outcome
            .lock()
            .expect("nobody panics holding it");
        let taken = outcome.take().inspect(|_| self.shared.decided.clear());
        taken.or_else(|| {
            let why = "the election takes longer than it can; its thread may hang".to_owned();
            (Instant::now() >= self.until).then_some(Outcome::Solo { why })
        })
    }

    /// Rings once it is decided, until the outcome is taken.
    pub(crate) fn decided(&self) -> Arc<Waker> {
        Arc::clone(&self.shared.decided)
    }

    /// When its thread counts as hung.
    pub(crate) fn overdue_at(&self) -> Instant {
        self.until
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.shared.abandoned.wake();
    }
}
