//! Names of exports, devices, members and jobs: `vol`, `home/vol`, `pair/b`, `home/pair/b`.
//!
//! An export, device, member or job has a path: the name of its graph, that of its device if it is a member or job,
//! and its own name. A word on the command line names an object if it ends with the object's own name, and any names
//! before it are from the object's path, in order, separated by slashes. So `GRAPH/NAME` and `DEVICE/MEMBER` need no
//! rules of their own. A name contains no slash. A word that names several objects is an error.

use crate::exit::{Exit, Failure};

/// The path of an export, device, member or job: the name of its graph first, its own name last.
pub type Path = Vec<String>;

/// The reason why a word does not name exactly one object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unresolved {
    /// No object has a path with this word.
    Unknown,
    /// Several objects have a path with this word; these are their paths.
    Ambiguous(Vec<String>),
}

impl Unresolved {
    /// Returns the failure for `word`. `unknown` returns the message for a word that names no object.
    pub fn refuse(self, word: &str, unknown: impl FnOnce() -> String) -> Failure {
        match self {
            Self::Unknown => Failure::new(Exit::NotFound, unknown()),
            Self::Ambiguous(names) => {
                failure!(Usage, "the name {word:?} is ambiguous: {}", names.join(", "))
                    .next("use one of these names")
            }
        }
    }
}

/// Returns the object that `word` names.
///
/// # Errors
/// `Unresolved` if `word` names no object, or several.
pub fn resolve<T>(
    word: &str,
    things: impl IntoIterator<Item = (Path, T)>,
) -> Result<T, Unresolved> {
    only(things.into_iter().filter(|(path, _)| is_named(word, path)))
}

/// Returns the object that `word` names, as [`resolve`] does. If `word` names none, but is the name of a graph with
/// only one object, returns that object.
///
/// # Errors
/// As [`resolve`].
pub fn resolve_or_only<T>(word: &str, things: Vec<(Path, T)>) -> Result<T, Unresolved> {
    let (named, others): (Vec<_>, Vec<_>) =
        things.into_iter().partition(|(path, _)| is_named(word, path));
    if !named.is_empty() {
        return only(named);
    }
    only(others.into_iter().filter(|(path, _)| path[0] == word))
}

/// Returns the text `some` with the `names` after it; `none` if there are no names.
pub fn listed<'n>(names: impl Iterator<Item = &'n str>, none: &str, some: &str) -> String {
    match &names.collect::<Vec<_>>()[..] {
        [] => none.to_owned(),
        names => format!("{some} {}", names.join(", ")),
    }
}

fn is_named(word: &str, path: &[String]) -> bool {
    let mut names = path.iter();
    let (_, last) = word.rsplit_once('/').unwrap_or(("", word));
    path.last().is_some_and(|own| own == last)
        && word.split('/').all(|part| names.any(|name| name == part))
}

fn only<T>(things: impl IntoIterator<Item = (Path, T)>) -> Result<T, Unresolved> {
    let mut things: Vec<_> = things.into_iter().collect();
    match things.len() {
        0 => Err(Unresolved::Unknown),
        1 => Ok(things.remove(0).1),
        _ => {
            let names = things.iter().map(|(path, _)| path.join("/"));
            Err(Unresolved::Ambiguous(names.collect()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn things(paths: &[&'static str]) -> Vec<(Path, &'static str)> {
        let split = |path: &&'static str| (path.split('/').map(str::to_owned).collect(), *path);
        paths.iter().map(split).collect()
    }

    #[test]
    fn resolve_finds_member_by_name_and_part_of_path() {
        let all = || things(&["home/pair/a", "home/pair/b", "home/far/b", "work/pair/c"]);
        for (word, found) in [
            ("a", "home/pair/a"),
            ("pair/b", "home/pair/b"),
            ("far/b", "home/far/b"),
            ("home/a", "home/pair/a"),
            ("home/far/b", "home/far/b"),
            ("pair/c", "work/pair/c"),
        ] {
            assert_eq!(resolve(word, all()), Ok(found), "{word}");
        }
        for word in ["", "/", "home", "pair", "pair/", "/a", "b/pair", "work/a", "home/home/a"] {
            assert_eq!(resolve(word, all()), Err(Unresolved::Unknown), "{word}");
        }
    }

    #[test]
    fn resolve_refuses_ambiguous_name_with_full_names() {
        let all = || things(&["pair/x/b", "home/pair/b", "home/vol", "work/vol"]);
        let both =
            |one: &str, two: &str| Err(Unresolved::Ambiguous(vec![one.to_owned(), two.to_owned()]));
        assert_eq!(resolve("pair/b", all()), both("pair/x/b", "home/pair/b"));
        assert_eq!(resolve("vol", all()), both("home/vol", "work/vol"));
        assert_eq!(resolve("work/vol", all()), Ok("work/vol"));
        let refusal = resolve("vol", all()).unwrap_err().refuse("vol", String::new);
        assert_eq!(refusal.code, Exit::Usage.code());
    }

    #[test]
    fn resolve_or_only_finds_only_device_of_named_graph() {
        assert_eq!(resolve_or_only("home", things(&["home/m", "work/n"])), Ok("home/m"));
        // A thing's own name takes precedence.
        assert_eq!(resolve_or_only("m", things(&["m/n", "work/m"])), Ok("work/m"));
        // The name of a device does not stand for its only member.
        let of_device = resolve_or_only("pair", things(&["home/pair/a", "work/n"]));
        assert_eq!(of_device, Err(Unresolved::Unknown));
        let several = resolve_or_only("home", things(&["home/m", "home/n"]));
        assert!(matches!(several, Err(Unresolved::Ambiguous(_))));
    }
}
