//! Which of its keys a session meets others at.
//!
//! A daemon at a key of [earlier builds](former_key) runs the same server, and a second one beside it would be a second
//! writer. It becomes this build by the hello. As long as sessions meet there, others do: a session decides once, when it
//! first looks for a daemon and finds none at its own key.

use std::sync::{Arc, OnceLock};

use kennel_core::hello::ClientHello;

use crate::confined;
use crate::former_key;
use crate::key_dir::KeyDir;

/// What a session decided: a former key, or `None` for its own.
#[derive(Debug, Default)]
pub(crate) struct FormerKey {
    decided: OnceLock<Option<FormerPlace>>,
    cwd_given: bool,
}

/// Where a session meets others, if not at its own key.
#[derive(Debug)]
pub(super) struct FormerPlace {
    pub(super) key: String,
    /// What to say there.
    pub(super) hello: Arc<ClientHello>,
}

impl FormerKey {
    /// Nothing is decided. `cwd_given`: somebody said where to run (`--cwd`).
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

    /// Decides for the session's own key, where a daemon answers.
    pub(super) fn is_not_used(&self) {
        let _ = self.decided.set(None);
    }

    /// Decides, now that nobody answers at the session's own key. Returns the former key if it was not asked already.
    pub(super) fn look(&self, hello: &ClientHello) -> Option<&FormerPlace> {
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
