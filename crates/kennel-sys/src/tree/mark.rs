//! The mark of a process: the value of `KENNEL_TREE` in its environment, which names the tree that it was started in.
//!
//! The kernel shows the environment, and only the process and its starters can have set it. Any process of the user can
//! write a record that says the same. So code that ends processes trusts the mark, not the record.

use std::fmt;

use super::COOKIE;
use crate::detached::Detached;
use crate::os;

/// The value of `KENNEL_TREE`: `<cookie>,<policy>,<session>`; of earlier builds, the cookie alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TreeMark {
    /// The name of the tree.
    pub(super) cookie: String,
    /// The rules for kept services; `None` if an earlier build started the process.
    pub(super) terms: Option<Terms>,
}

/// The values that decide whether a process is a kept service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Terms {
    /// The detached processes that are kept.
    pub(super) policy: Detached,
    /// The session that the server leads: a process in another one is detached.
    pub(super) session: u32,
}

impl TreeMark {
    /// The mark of a process; `None` if it has none or its environment cannot be read.
    pub(super) fn of(pid: u32) -> Option<TreeMark> {
        let value = os::environ_value(pid, COOKIE).ok()??;
        Some(TreeMark::parse(&String::from_utf8_lossy(&value)))
    }

    fn parse(value: &str) -> TreeMark {
        let mut parts = value.split(',');
        let cookie = parts.next().unwrap_or_default().to_owned();
        let mut terms = || {
            Some(Terms {
                policy: parts.next()?.parse().ok()?,
                session: parts.next()?.parse().ok()?,
            })
        };
        TreeMark {
            terms: terms(),
            cookie,
        }
    }
}

impl fmt::Display for TreeMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.cookie)?;
        match self.terms {
            Some(Terms { policy, session }) => write!(f, ",{policy},{session}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_can_be_read_back_and_a_mark_of_an_earlier_build_is_a_cookie() {
        let cookie = "0f".repeat(16);
        for policy in [
            Detached::Auto,
            Detached::AutoGuard,
            Detached::Keep,
            Detached::End,
        ] {
            let session = 77;
            let mark = TreeMark {
                cookie: cookie.clone(),
                terms: Some(Terms { policy, session }),
            };
            assert_eq!(TreeMark::parse(&mark.to_string()), mark);
        }
        for value in ["", ",keep", ",often,77", ",keep,x"] {
            let mark = TreeMark::parse(&format!("{cookie}{value}"));
            assert_eq!((mark.cookie, mark.terms), (cookie.clone(), None), "{value}");
        }
    }
}
