//! The progress that the app received for each request. A replayed request starts again, but its progress must never go
//! back: the app must not get the same progress twice.

use std::collections::BTreeMap;

use crate::message::{Key, Notification, Part, only_same_number};

#[derive(Debug, Default)]
pub(super) struct Progress {
    /// The last progress by token.
    by_token: BTreeMap<Key, TokenState>,
}

#[derive(Debug)]
enum TokenState {
    /// Sent once: all progress passes.
    First(Option<f64>),
    /// Replayed: only progress beyond this passes.
    Replayed(Option<f64>),
    /// A request of the session itself: the app has got the last progress of this token.
    Hidden,
}

impl Progress {
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.by_token.len()
    }

    /// Records that a request with this token was sent.
    pub(super) fn sent(&mut self, token: &Key, again: bool) {
        let before = self.by_token.remove(token);
        let state = match before {
            Some(TokenState::First(highest) | TokenState::Replayed(highest)) if again => {
                TokenState::Replayed(highest)
            }
            _ => TokenState::First(None),
        };
        self.by_token.insert(token.clone(), state);
    }

    /// Hides the progress of a request of the session itself.
    pub(super) fn hide(&mut self, token: &Key) {
        self.by_token
            .entry(token.clone())
            .or_insert(TokenState::Hidden);
    }

    /// Ends that.
    pub(super) fn unhide(&mut self, token: Option<&Key>) {
        if let Some(token) = token
            && let Some(TokenState::Hidden) = self.by_token.get(token)
        {
            self.by_token.remove(token);
        }
    }

    /// Forgets the progress of a request that ended.
    pub(super) fn ended(&mut self, token: &Key) {
        self.by_token.remove(token);
    }

    /// Whether the app gets this progress. Progress of an unknown request may belong to a task.
    pub(super) fn passes(&mut self, notification: &Notification<'_>) -> bool {
        let Some((token, progress)) = read(notification) else {
            return true;
        };
        let token = match self.by_token.contains_key(&token) {
            true => token,
            false => match only_same_number(&self.by_token, &token, |_| true) {
                Some(meant) => meant.clone(),
                None => return true,
            },
        };
        match self.by_token.get_mut(&token) {
            None => true,
            Some(TokenState::Hidden) => false,
            Some(TokenState::First(highest)) => {
                *highest = Some(highest.map_or(progress, |before| before.max(progress)));
                true
            }
            Some(TokenState::Replayed(highest)) => {
                let continues_exchange = highest.is_none_or(|before| progress > before);
                if continues_exchange {
                    *highest = Some(progress);
                }
                continues_exchange
            }
        }
    }
}

/// The progress token of a request.
pub(super) fn token(params: Option<Part<'_>>) -> Option<Key> {
    let token = params?.search_at(&["_meta", "progressToken"]);
    token.ok()??.key()
}

fn read(notification: &Notification<'_>) -> Option<(Key, f64)> {
    let params = notification.params?;
    let token = params.member("progressToken").ok()??.key()?;
    let progress = params.member("progress").ok()??.text().parse().ok()?;
    Some((token, progress))
}
