//! How far the app was told its requests have come. A request that is sent again begins at nothing again, and
//! progress must never go back: what the app has heard it does not hear twice.

use std::collections::BTreeMap;

use crate::message::{Key, Notification, Part, only_same_number};

#[derive(Debug, Default)]
pub(super) struct Progress {
    /// By token.
    courses: BTreeMap<Key, Course>,
}

#[derive(Debug)]
enum Course {
    /// Sent once: whatever the server says passes.
    First(Option<f64>),
    /// Sent again: only what is further than that passes.
    Again(Option<f64>),
    /// Of the session's own: the app has heard the end of it.
    Mute,
}

impl Progress {
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.courses.len()
    }

    /// A request whose progress is known by this token is sent.
    pub(super) fn sent(&mut self, token: &Key, again: bool) {
        let before = self.courses.remove(token);
        let course = match before {
            Some(Course::First(highest) | Course::Again(highest)) if again => {
                Course::Again(highest)
            }
            _ => Course::First(None),
        };
        self.courses.insert(token.clone(), course);
    }

    /// The session sends one of its own.
    pub(super) fn mute(&mut self, token: &Key) {
        self.courses.entry(token.clone()).or_insert(Course::Mute);
    }

    /// That is over.
    pub(super) fn unmute(&mut self, token: Option<&Key>) {
        if let Some(token) = token
            && let Some(Course::Mute) = self.courses.get(token)
        {
            self.courses.remove(token);
        }
    }

    /// The request is over.
    pub(super) fn ended(&mut self, token: &Key) {
        self.courses.remove(token);
    }

    /// Whether the app is to hear this. What is of no request in flight may be of a task.
    pub(super) fn passes(&mut self, notification: &Notification<'_>) -> bool {
        let Some((token, progress)) = read(notification) else {
            return true;
        };
        let token = match self.courses.contains_key(&token) {
            true => token,
            false => match only_same_number(&self.courses, &token, |_| true) {
                Some(meant) => meant.clone(),
                None => return true,
            },
        };
        match self.courses.get_mut(&token) {
            None => true,
            Some(Course::Mute) => false,
            Some(Course::First(highest)) => {
                *highest = Some(highest.map_or(progress, |before| before.max(progress)));
                true
            }
            Some(Course::Again(highest)) => {
                let goes_on = highest.is_none_or(|before| progress > before);
                if goes_on {
                    *highest = Some(progress);
                }
                goes_on
            }
        }
    }
}

/// What a request's progress is to be known by.
pub(super) fn token(params: Option<Part<'_>>) -> Option<Key> {
    let token = params?.at_if_any(&["_meta", "progressToken"]);
    token.ok()??.key()
}

fn read(notification: &Notification<'_>) -> Option<(Key, f64)> {
    let params = notification.params?;
    let token = params.member("progressToken").ok()??.key()?;
    let progress = params.member("progress").ok()??.text().parse().ok()?;
    Some((token, progress))
}
