//! The path of the runtime directory: it follows from the uid, and not from what an app passes on (rule 8).

use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};

use super::RuntimeDir;
use super::error::DirError;
use super::gate::our_uid;

/// The variable that names another runtime directory, for tests and containers.
pub const OVERRIDE: &str = "KENNEL_RUNTIME_DIR";

/// The origin of a path, which decides the advice in errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// From the uid.
    Uid,
    /// From [`OVERRIDE`].
    Override,
    /// From the XDG convention.
    Xdg,
    /// From the author of the program.
    Caller,
    /// From a directory that passed the gate.
    Inside,
}

/// The paths of a user's runtime directory: the usual one, and the fallback if another user occupies it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeDirPaths {
    usual: PathBuf,
    aside: Option<PathBuf>,
    origin: Origin,
}

impl RuntimeDirPaths {
    /// The paths for the user of this process.
    pub fn of_user() -> Result<RuntimeDirPaths, DirError> {
        RuntimeDirPaths::of(our_uid(), std::env::var_os(OVERRIDE).as_deref())
    }

    /// The paths for `uid`, given the value of [`OVERRIDE`]. Accesses no file.
    ///
    /// `/run/user/<uid>` is only the fallback: whether it exists depends on being logged in, so a cron job and a login
    /// would use different directories.
    pub fn of(uid: u32, overridden: Option<&OsStr>) -> Result<RuntimeDirPaths, DirError> {
        match overridden {
            None => Ok(RuntimeDirPaths::new(
                format!("/tmp/kennel-{uid}"),
                format!("/run/user/{uid}/kennel"),
            )),
            Some(value) if Path::new(value).is_absolute() => Ok(RuntimeDirPaths {
                usual: value.into(),
                aside: None,
                origin: Origin::Override,
            }),
            Some(value) => Err(DirError::BadOverride {
                value: value.to_owned(),
            }),
        }
    }

    /// Paths of the caller's choice, with the same fallback rule.
    pub fn new(usual: impl Into<PathBuf>, aside: impl Into<PathBuf>) -> RuntimeDirPaths {
        RuntimeDirPaths {
            usual: usual.into(),
            aside: Some(aside.into()),
            origin: Origin::Uid,
        }
    }

    /// The usual path.
    pub fn default_path(&self) -> &Path {
        &self.usual
    }

    /// The fallback path, if there is one.
    pub fn fallback_path(&self) -> Option<&Path> {
        self.aside.as_deref()
    }

    /// Opens the directory, and creates it if it is missing.
    pub fn ensure(&self) -> Result<RuntimeDir, DirError> {
        match RuntimeDir::ensure_at(&self.usual, self.origin) {
            Err(squatted @ DirError::WrongOwner { .. }) => match &self.aside {
                Some(aside) => RuntimeDir::ensure_at(aside, self.origin).map_err(|_| squatted),
                None => Err(squatted),
            },
            // A directory of this user with a problem must be fixed: with the fallback, processes would not find each other
            // (rule 8).
            usual => usual,
        }
    }

    /// Opens the directory if it exists.
    pub fn find(&self) -> Result<Option<RuntimeDir>, DirError> {
        match RuntimeDir::open_at(&self.usual, self.origin) {
            Err(squatted @ DirError::WrongOwner { .. }) => match &self.aside {
                // Without its parent the fallback cannot exist, so no process uses it.
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

/// `name` if it is exactly one path component.
pub(super) fn single(name: &OsStr) -> Option<&OsStr> {
    let mut components = Path::new(name).components();
    match (components.next(), components.next()) {
        (Some(Component::Normal(only)), None) if only == name => Some(only),
        _ => None,
    }
}

/// Makes `path` absolute, and removes a final `/` or `/.`, which would follow a symbolic link.
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
    fn rule_8_the_path_follows_from_the_uid() {
        let place = RuntimeDirPaths::of(1000, None).unwrap();
        assert_eq!(place.default_path(), Path::new("/tmp/kennel-1000"));
        assert_eq!(
            place.fallback_path(),
            Some(Path::new("/run/user/1000/kennel"))
        );
    }

    #[test]
    fn an_absolute_override_is_the_only_path() {
        let place = RuntimeDirPaths::of(1000, Some(OsStr::new("/srv/meet"))).unwrap();
        assert_eq!(place.default_path(), Path::new("/srv/meet"));
        assert_eq!(place.fallback_path(), None);
    }

    #[test]
    fn an_override_that_is_not_absolute_is_an_error_with_a_fix() {
        for value in ["", "meet", "./meet", "~/meet"] {
            let error = RuntimeDirPaths::of(1000, Some(OsStr::new(value))).unwrap_err();
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
    fn a_final_slash_or_dot_is_removed() {
        for path in ["/a/link", "/a/link/", "/a/link/.", "/a/./link//"] {
            assert_eq!(plain(Path::new(path)).unwrap(), Path::new("/a/link"));
        }
    }
}
