//! What a guard is to guard, and how.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kennel_core::lifetime::{self, Policy};
use kennel_sys::env;
use kennel_sys::lock::Mode;
use kennel_sys::starter::{self, Starter};

use crate::guard::Guard;
use crate::owner::{self, Owner};
use crate::refusal::Refusal;
use crate::store::{HeldAt, Seized, Store};
use crate::watch::Watch;

/// Disarms the watch over whoever started us; see [`starter::watch_enabled`].
const PARENT_WATCH: &str = "KENNEL_PARENT_WATCH";

/// Says what a [`Guard`] is to guard. Made by [`Guard::builder`].
#[derive(Debug)]
#[must_use = "nothing is guarded before `acquire`"]
pub struct GuardBuilder {
    name: String,
    starter: io::Result<Starter>,
    store: Option<PathBuf>,
    mode: Mode,
    legacy: Vec<PathBuf>,
    owner_flag: Option<String>,
    owner_variable: Option<OwnerVariable>,
    watch_parent: bool,
    catch_signals: bool,
    policy: Policy,
}

#[derive(Debug)]
struct OwnerVariable {
    name: String,
    value: OsString,
    scrubbed: bool,
}

impl GuardBuilder {
    pub(crate) fn new(name: &str) -> GuardBuilder {
        GuardBuilder {
            // First of all, before the answer can change (lesson 19).
            starter: starter::capture(),
            name: name.to_owned(),
            store: None,
            mode: Mode::Exclusive,
            legacy: Vec::new(),
            owner_flag: None,
            owner_variable: None,
            watch_parent: true,
            catch_signals: true,
            policy: Policy {
                linger: None,
                grace: lifetime::GRACE,
                max_idle: None,
            },
        }
    }

    /// The store this server writes: the scope of its lock. It need not exist yet. Two spellings of
    /// one path are one store; so are two environments of one user.
    pub fn store(mut self, path: impl AsRef<Path>) -> Self {
        self.store = Some(path.as_ref().to_owned());
        self
    }

    /// Nobody else may have the store: the default.
    pub fn exclusive(mut self) -> Self {
        self.mode = Mode::Exclusive;
        self
    }

    /// Others that coexist may have the store too, but nobody who wants it alone.
    pub fn coexist(mut self) -> Self {
        self.mode = Mode::Shared;
        self
    }

    /// Where older releases of this server kept their lock. Missing, it is not created; held by an
    /// older one, the guard is refused; else it keeps older ones out for as long as the guard lives.
    pub fn legacy_lock(mut self, path: impl AsRef<Path>) -> Self {
        self.legacy.push(path.as_ref().to_owned());
        self
    }

    /// The owner, as given on the command line: a pid. A bad value refuses the guard. It counts before
    /// [`owner_from_env`](Self::owner_from_env).
    pub fn owner(mut self, pid: impl Into<String>) -> Self {
        self.owner_flag = Some(pid.into());
        self
    }

    /// The owner, if the environment names one: taken out of it, so that nothing started later inherits
    /// it. A bad value is ignored, with a [notice](Guard::notices).
    ///
    /// Call it before other threads run: where they do, the variable has to stay, and a notice says so.
    pub fn owner_from_env(mut self, name: &str) -> Self {
        self.owner_variable = kennel_sys::env::take(name).map(|taken| OwnerVariable {
            name: name.to_owned(),
            value: taken.value,
            scrubbed: taken.scrubbed,
        });
        self
    }

    /// Whether to end with whoever started us (default: yes). `KENNEL_PARENT_WATCH=off` disarms it too.
    pub fn watch_parent(mut self, watch: bool) -> Self {
        self.watch_parent = watch;
        self
    }

    /// Whether SIGTERM, SIGINT and SIGHUP end in the one shutdown (default: yes). A second one, a second
    /// later or more, does what it always does: a server that hangs in its farewell can be ended.
    pub fn catch_signals(mut self, catch: bool) -> Self {
        self.catch_signals = catch;
        self
    }

    /// How long to live without any [`Lease`](crate::Lease). Not set: having none is no reason to end.
    pub fn linger(mut self, linger: Duration) -> Self {
        self.policy.linger = Some(linger);
        self
    }

    /// How long the owner must be gone, with no lease all the while (default: 5 s).
    pub fn grace(mut self, grace: Duration) -> Self {
        self.policy.grace = grace;
        self
    }

    /// The backstop: leases that show no [traffic](crate::Lease::traffic) for so long count as dead.
    /// Not set: never. Set it only where every lease reports its traffic.
    pub fn max_idle(mut self, max_idle: Duration) -> Self {
        self.policy.max_idle = Some(max_idle);
        self
    }

    /// Takes the guard, or says at once why not and who is in the way.
    pub fn acquire(mut self) -> Result<Guard, Refusal> {
        let mut notices = Vec::new();
        let owner = self.captured_owner(&mut notices)?;
        let starter = self.watched_starter(&mut notices);
        let held = match &self.store {
            Some(path) => Some(Store::at(path, &self.legacy)?.take(self.mode, &self.name)?),
            None => None,
        };
        let watch = Watch::new(self.policy, owner, starter, self.catch_signals)
            .map_err(Refusal::io("watch over signals and processes"))?;
        Guard::start(watch, held, notices).map_err(Refusal::io("start the watching thread"))
    }

    /// Who has the store, at its own place or a legacy one; nobody, if the answer is empty. Creates nothing.
    pub fn probe(&self) -> Result<Vec<HeldAt>, Refusal> {
        self.required_store()?.probe()
    }

    /// The files of the store's lock, as far as they exist: what [`Seized::remove_runtime`] removes.
    /// Creates nothing.
    pub fn runtime_files(&self) -> Result<Vec<PathBuf>, Refusal> {
        self.required_store()?.runtime_files()
    }

    /// Takes the store against everyone, at every place, for a destructive act; or says who has it.
    pub fn seize(&self) -> Result<Seized, Refusal> {
        self.required_store()?.seize()
    }

    fn required_store(&self) -> Result<Store, Refusal> {
        let unnamed = || io::Error::new(io::ErrorKind::InvalidInput, "no store was named");
        let path = self.store.as_ref().ok_or_else(unnamed);
        Store::at(path.map_err(Refusal::io("look for a store"))?, &self.legacy)
    }

    fn captured_owner(&self, notices: &mut Vec<String>) -> Result<Option<Owner>, Refusal> {
        if let Some(OwnerVariable {
            name,
            scrubbed: false,
            ..
        }) = &self.owner_variable
        {
            notices.push(format!(
                "{name} stays in the environment, where other threads already run: what is started later may take it for its own"
            ));
        }
        let named = match (&self.owner_flag, &self.owner_variable) {
            (Some(flag), _) => Some(owner::parse(flag)?),
            (None, Some(variable)) => match owner::parse(&variable.value.to_string_lossy()) {
                Ok(named) => Some(named),
                Err(error) => {
                    notices.push(format!("{} is ignored: {error}", variable.name));
                    None
                }
            },
            (None, None) => None,
        };
        let Some(named) = named else {
            return Ok(None);
        };
        match named.capture() {
            Ok(owner) => Ok(Some(owner)),
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                notices.push(format!("the owner is not watched: {error}"));
                Ok(None)
            }
            Err(error) => Err(Refusal::io("look at the owner")(error)),
        }
    }

    fn watched_starter(&mut self, notices: &mut Vec<String>) -> Starter {
        let switch = std::env::var_os(PARENT_WATCH).filter(|switch| !switch.is_empty());
        if let Some(odd) = switch.as_ref().filter(|it| env::switch(it).is_none()) {
            notices.push(format!(
                "{PARENT_WATCH} is ignored, so the end of the app ends this server: {odd:?} is neither on nor off"
            ));
        }
        if !self.watch_parent || !starter::watch_enabled(switch.as_deref()) {
            return Starter::Nobody;
        }
        let captured = std::mem::replace(&mut self.starter, Ok(Starter::Nobody));
        captured.unwrap_or_else(|error| {
            notices.push(format!(
                "cannot tell who started this server, so only EOF ends it: {error}"
            ));
            Starter::Nobody
        })
    }
}
