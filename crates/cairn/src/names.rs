//! Names of exports, devices, members and jobs: `vol`, `home/vol`, `pair/b`, `home/pair/b`.
//!
//! A thing has a path: the name of its graph, that of its device, and its own. A word names a thing if it has the thing's own
//! name, and before it any of the others, in their order, with slashes between them. So `GRAPH/NAME` and `DEVICE/MEMBER` need
//! no rules of their own, and a name never has a slash. A word that names several things is refused.

use crate::exit::{Exit, Failure};

/// The path of a thing, its graph first.
pub type Path = Vec<String>;

/// Why a word does not name one thing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unresolved {
    /// It names none.
    Unknown,
    /// It names all of these.
    Ambiguous(Vec<String>),
}

impl Unresolved {
    /// The refusal of `word`. `unknown` says which things of this sort there are.
    pub fn refuse(self, word: &str, unknown: impl FnOnce() -> String) -> Failure {
        match self {
            Self::Unknown => Failure::new(Exit::NotFound, unknown()),
            Self::Ambiguous(names) => {
                let why = format!("{word:?} could be any of {}", names.join(", "));
                Failure::new(Exit::Usage, why).next("use one of these names")
            }
        }
    }
}

/// Returns the thing that `word` names.
///
/// # Errors
/// If it names none, or several.
pub fn resolve<T>(
    word: &str,
    things: impl IntoIterator<Item = (Path, T)>,
) -> Result<T, Unresolved> {
    only(things.into_iter().filter(|(path, _)| is_named(word, path)))
}

/// As [`resolve`]. The name of a graph alone stands for the only thing in it.
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
    fn word_names_thing_by_its_own_name_and_any_before_it() {
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
    fn ambiguous_word_is_refused_with_full_names() {
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
    fn graph_stands_for_its_only_thing() {
        assert_eq!(resolve_or_only("home", things(&["home/m", "work/n"])), Ok("home/m"));
        // The own name comes first.
        assert_eq!(resolve_or_only("m", things(&["m/n", "work/m"])), Ok("work/m"));
        let several = resolve_or_only("home", things(&["home/m", "home/n"]));
        assert!(matches!(several, Err(Unresolved::Ambiguous(_))));
    }
}
