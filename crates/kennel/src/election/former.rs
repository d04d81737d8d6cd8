//! Decides whether a session uses its own key or a key of an earlier build.
//!
//! A daemon at a key of [earlier builds](former_key) runs the same server, and a second daemon would start a second writer.
//! Its upgrade to this build begins with the hello. A session decides once, when it first looks for a daemon and finds none
//! at its own key: so sessions use the former key while that daemon runs.

use std::sync::{Arc, OnceLock};

use kennel_core::hello::ClientHello;

use crate::confined;
use crate::former_key;
use crate::key_dir::KeyDir;

/// The decision of a session: a former key, or `None` for its own key.
#[derive(Debug, Default)]
pub(crate) struct FormerKey {
    decided: OnceLock<Option<FormerPlace>>,
    cwd_given: bool,
}

/// A former key and the hello for its daemon.
#[derive(Debug)]
pub(super) struct FormerPlace {
    pub(super) key: String,
    /// The hello with the former key.
    pub(super) hello: Arc<ClientHello>,
}

impl FormerKey {
    /// Nothing is decided yet. `cwd_given`: the working directory was given (`--cwd`).
    pub(crate) fn new(cwd_given: bool) -> FormerKey {
        FormerKey {
            decided: OnceLock::new(),
            cwd_given,
        }
    }

    /// The former key, if the session decided for it.
    pub(super) fn decided(&self) -> Option<&FormerPlace> {
        self.decided.get()?.as_ref()
    }

    /// Decides for the session's own key, because a daemon answers there.
    pub(super) fn is_not_used(&self) {
        let _ = self.decided.set(None);
    }

    /// Decides after no daemon answered at the session's own key. Returns the former key unless it was tried before.
    pub(super) fn decide(&self, hello: &ClientHello) -> Option<&FormerPlace> {
        if self.decided.get().is_some() {
            return None;
        }
        let find = || {
            let hello = former_key::hello_of(hello, self.cwd_given);
            let keys = former_key::of_hello(&hello, confined::ours().ok()?);
            let key = keys.into_iter().find(|key| KeyDir::has_daemon(key))?;
            let hello = Arc::new(hello);
            Some(FormerPlace { key, hello })
        };
        self.decided.get_or_init(find).as_ref()
    }
}
