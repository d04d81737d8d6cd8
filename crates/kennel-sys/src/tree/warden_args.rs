//! The settings of a warden, as one argument of its command line.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

use super::Ladder;
use crate::detached::Detached;
use crate::process::Identity;

/// The settings of one warden.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WardenArgs {
    pub(super) control: RawFd,
    pub(super) served: Identity,
    pub(super) ladder: Ladder,
    pub(super) detached: Detached,
    pub(super) place: RecordPlace,
    pub(super) recording: Recording,
}

/// Whether a server may run if its record cannot be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Recording {
    /// It may run: for a session, a server without a record is better than no server.
    BestEffort,
    /// It may not run: without a record, its leftovers could not be found.
    Required,
}

/// The name of the tree, and the directory of its record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RecordPlace {
    pub(super) cookie: String,
    pub(super) records: Option<RawFd>,
}

impl RecordPlace {
    pub(super) fn new(records: Option<RawFd>) -> io::Result<RecordPlace> {
        let cookie = crate::random::hex_id()?;
        Ok(RecordPlace { cookie, records })
    }
}

impl fmt::Display for WardenArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WardenArgs {
            control,
            served,
            ladder,
            detached,
            place,
            recording,
        } = self;
        let (eof, term) = (ladder.after_eof.as_millis(), ladder.after_term.as_millis());
        let records = place.records.unwrap_or(-1);
        write!(
            f,
            "for={served},control={control},ladder={eof}/{term},detached={detached},tree={},records={records}",
            place.cookie
        )?;
        match recording {
            Recording::BestEffort => Ok(()),
            Recording::Required => f.write_str(",recording=required"),
        }
    }
}

impl WardenArgs {
    pub(super) fn parse(text: &OsStr) -> Option<WardenArgs> {
        let text = text.to_str()?;
        let field = |name: &str| {
            text.split(',')
                .find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
        };
        let (eof, term) = field("ladder")?.split_once('/')?;
        let records: RawFd = field("records")?.parse().ok()?;
        Some(WardenArgs {
            control: field("control")?.parse().ok()?,
            served: field("for")?.parse().ok()?,
            ladder: Ladder {
                after_eof: Duration::from_millis(eof.parse().ok()?),
                after_term: Duration::from_millis(term.parse().ok()?),
            },
            detached: field("detached")?.parse().ok()?,
            place: RecordPlace {
                cookie: field("tree")?.to_owned(),
                records: (records >= 0).then_some(records),
            },
            recording: match field("recording") {
                Some("required") => Recording::Required,
                _ => Recording::BestEffort,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_can_be_read_back() {
        let warden_args = WardenArgs {
            control: 7,
            served: "1:2:0000000000000000000000000000000f:4:5"
                .parse()
                .expect("well-formed"),
            ladder: Ladder::default(),
            detached: Detached::Keep,
            place: RecordPlace {
                cookie: "abc".into(),
                records: Some(9),
            },
            recording: Recording::Required,
        };
        assert_eq!(
            WardenArgs::parse(OsStr::new(&warden_args.to_string())),
            Some(warden_args.clone())
        );
        let without = WardenArgs {
            place: RecordPlace {
                records: None,
                ..warden_args.place.clone()
            },
            recording: Recording::BestEffort,
            ..warden_args
        };
        assert_eq!(
            WardenArgs::parse(OsStr::new(&without.to_string())),
            Some(without)
        );
    }
}
