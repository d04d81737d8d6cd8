//! Which of its two keys a session meets others at.
//!
//! A daemon at the key of [earlier builds](former_key) runs the same server, and a second one beside it would be a second
//! writer. It becomes this build by the hello. As long as sessions meet there, others do: a session decides once, when it
//! first looks for a daemon and finds none at its own key.

use std::sync::OnceLock;

use kennel_core::hello::ClientHello;

use crate::confined;
use crate::former_key;
use crate::meeting::Meeting;

/// What a session decided: the former key, or `None` for its own.
#[derive(Debug, Default)]
pub(crate) struct FormerKey(OnceLock<Option<String>>);

impl FormerKey {
    /// The former key, if the session decided for it.
    pub(super) fn decided(&self) -> Option<&str> {
        self.0.get()?.as_deref()
    }

    /// Decides for the session's own key, where a daemon answers.
    pub(super) fn is_not_used(&self) {
        let _ = self.0.set(None);
    }

    /// Decides, now that nobody answers at the session's own key. Returns the former key if it was not asked already.
    pub(super) fn look(&self, hello: &ClientHello) -> Option<&str> {
        if self.0.get().is_some() {
            return None;
        }
        let former = || former_key::of_hello(hello, confined::ours().ok()?);
        let decided = self
            .0
            .get_or_init(|| former().filter(|it| Meeting::has_daemon(it)));
        decided.as_deref()
    }
}
