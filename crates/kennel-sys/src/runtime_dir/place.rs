//! Which directory it is: a matter of the uid, and of nothing an app may or may not have passed on (rule 8).

use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};

use super::RuntimeDir;
use super::error::DirError;
use super::gate::our_uid;

/// The variable that names another meeting place, for tests and containers.
pub const OVERRIDE: &str = "KENNEL_RUNTIME_DIR";

/// Who chose a path, and so which advice about it is any use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// It follows from the uid.
    Uid,
    /// The person who set [`OVERRIDE`].
    Override,
    /// The XDG convention.
    Xdg,
    /// The program's author.
    Caller,
    /// It lies in a directory that passed the gate.
    Inside,
}

/// Where one user's processes meet: the usual place, and the one to step aside to where another user sits in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeetingPlace {
    usual: PathBuf,
    aside: Option<PathBuf>,
    origin: Origin,
}

impl MeetingPlace {
    /// The meeting place of the user this process runs as.
    pub fn of_user() -> Result<MeetingPlace, DirError> {
        MeetingPlace::of(our_uid(), std::env::var_os(OVERRIDE).as_deref())
    }

    /// The meeting place of `uid`, given the value of [`OVERRIDE`]. Touches nothing.
    ///
    /// `/run/user/<uid>` is only stepped aside to: whether it exists depends on being logged in,
    /// so that a cron job and a login would not meet there.
    pub fn of(uid: u32, overridden: Option<&OsStr>) -> Result<MeetingPlace, DirError> {
        match overridden {
            None => Ok(MeetingPlace::new(
                format!("/tmp/kennel-{uid}"),
                format!("/run/user/{uid}/kennel"),
            )),
            Some(value) if Path::new(value).is_absolute() => Ok(MeetingPlace {
                usual: value.into(),
                aside: None,
                origin: Origin::Override,
            }),
            Some(value) => Err(DirError::BadOverride {
                value: value.to_owned(),
            }),
        }
    }

    /// A meeting place like that of a uid, at paths of the caller's choice.
    pub fn new(usual: impl Into<PathBuf>, aside: impl Into<PathBuf>) -> MeetingPlace {
        MeetingPlace {
            usual: usual.into(),
            aside: Some(aside.into()),
            origin: Origin::Uid,
        }
    }

    /// The usual place.
    pub fn usual(&self) -> &Path {
        &self.usual
    }

    /// The place to step aside to, if there is one.
    pub fn aside(&self) -> Option<&Path> {
        self.aside.as_deref()
    }

    /// The directory, created if it is missing.
    pub fn ensure(&self) -> Result<RuntimeDir, DirError> {
        match RuntimeDir::ensure_at(&self.usual, self.origin) {
            Err(squatted @ DirError::WrongOwner { .. }) => match &self.aside {
                Some(aside) => RuntimeDir::ensure_at(aside, self.origin).map_err(|_| squatted),
                None => Err(squatted),
            },
            // What is ours and wrong is for us to put right: stepping aside would split the peers (rule 8).
            usual => usual,
        }
    }

    /// The directory if it is there; creates nothing.
    pub fn find(&self) -> Result<Option<RuntimeDir>, DirError> {
        match RuntimeDir::open_at(&self.usual, self.origin) {
            Err(squatted @ DirError::WrongOwner { .. }) => match &self.aside {
                // Without its parent that place cannot be had: nobody is there, and nobody could be.
                Some(aside) if aside.parent().is_some_and(Path::is_dir) => {
                    RuntimeDir::open_at(aside, self.origin).map_err(|_| squatted)
                }
                _ => Err(squatted),
            },
            usual => usual,
        }
    }
}

/// [`RuntimeDir::xdg`] with the environment as arguments.
pub(super) fn xdg(
    app: &str,
    runtime: Option<PathBuf>,
    tmp: Option<PathBuf>,
) -> Result<RuntimeDir, DirError> {
    let tmp = tmp
        .filter(|path| path.is_absolute())
        .unwrap_or_else(|| PathBuf::from("/tmp"));
    let Some(app) = single(OsStr::new(app)) else {
        let name = app.into();
        return Err(DirError::BadName { path: tmp, name });
    };
    let parent = runtime
        .filter(|path| path.is_absolute())
        .and_then(|path| RuntimeDir::open_at(&path, Origin::Xdg).ok().flatten());
    if let Some(parent) = parent {
        return parent.subdir(app);
    }
    let mut name = app.to_owned();
    name.push(format!("-{}", our_uid()));
    RuntimeDir::ensure_at(&tmp.join(name), Origin::Xdg)
}

/// `name` if it is exactly one plain component of a path.
pub(super) fn single(name: &OsStr) -> Option<&OsStr> {
    let mut components = Path::new(name).components();
    match (components.next(), components.next()) {
        (Some(Component::Normal(only)), None) if only == name => Some(only),
        _ => None,
    }
}

/// `path` made absolute and without a final `/` or `/.`, either of which would lead through a symbolic link.
pub(super) fn plain(path: &Path) -> Result<PathBuf, DirError> {
    let absolute = std::path::absolute(path).map_err(|source| DirError::Io {
        path: path.to_owned(),
        what: "resolve",
        source,
    })?;
    Ok(absolute.components().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_8_the_place_follows_from_the_uid() {
        let place = MeetingPlace::of(1000, None).unwrap();
        assert_eq!(place.usual(), Path::new("/tmp/kennel-1000"));
        assert_eq!(place.aside(), Some(Path::new("/run/user/1000/kennel")));
    }

    #[test]
    fn an_absolute_override_is_the_only_place() {
        let place = MeetingPlace::of(1000, Some(OsStr::new("/srv/meet"))).unwrap();
        assert_eq!(place.usual(), Path::new("/srv/meet"));
        assert_eq!(place.aside(), None);
    }

    #[test]
    fn an_override_that_is_not_absolute_is_an_error_with_a_fix() {
        for value in ["", "meet", "./meet", "~/meet"] {
            let error = MeetingPlace::of(1000, Some(OsStr::new(value))).unwrap_err();
            assert!(matches!(error, DirError::BadOverride { .. }), "{value:?}");
            assert_eq!(error.fix().as_deref(), Some("unset KENNEL_RUNTIME_DIR"));
        }
    }

    #[test]
    fn a_name_is_one_component() {
        for name in ["a", ".a", "a b", "..."] {
            assert!(single(OsStr::new(name)).is_some(), "{name:?}");
        }
        for name in ["", ".", "..", "/", "a/", "/a", "a/b", "./a", "a/."] {
            assert!(single(OsStr::new(name)).is_none(), "{name:?}");
        }
    }

    #[test]
    fn what_would_lead_through_a_link_is_taken_off() {
        for path in ["/a/link", "/a/link/", "/a/link/.", "/a/./link//"] {
            assert_eq!(plain(Path::new(path)).unwrap(), Path::new("/a/link"));
        }
    }
}
