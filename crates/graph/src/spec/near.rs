//! The known word that is most similar to a misspelt word, for error messages.

use super::parse::NAME_MAX_BYTES;

/// Maximum number of known words among which a guess is sought: the unknown word is compared with each of them.
const KNOWN_MAX: usize = 512;

/// Maximum number of known words that a message lists if none of them is similar. A longer list would hide the message.
const LISTED_MAX: usize = 24;

/// Returns the end of an error message about the unknown word `word`: the most similar of the `known` words; or all of
/// them, if they are few; or nothing.
pub(super) fn hint<'w>(word: &str, known: impl IntoIterator<Item = &'w str>) -> String {
    let known: Vec<&str> = known.into_iter().collect();
    guess(word, &known).unwrap_or_else(|| match known.len() {
        1..=LISTED_MAX => format!("; known: {}", known.join(", ")),
        _ => String::new(),
    })
}

/// Returns the end of an error message that names the word of `known` most similar to `word`, if one is similar enough.
pub(super) fn guess(word: &str, known: &[&str]) -> Option<String> {
    // A third of the letters may be wrong: beyond that a guess is more likely to be nonsense.
    let most = (word.chars().count() / 3).max(1);
    if word.len() > NAME_MAX_BYTES || known.len() > KNOWN_MAX {
        return None;
    }
    let small = word.to_lowercase();
    let alike = known.iter().filter(|one| one.len().abs_diff(word.len()) <= most);
    let far = alike.map(|one| (distance(&small, &one.to_lowercase()), one));
    let (_, nearest) = far.filter(|(far, _)| *far <= most).min_by_key(|(far, _)| *far)?;
    Some(format!("; did you mean {nearest:?}?"))
}

/// Returns the edit distance of two words: the number of letters to insert, remove, change or swap with their
/// neighbour.
fn distance(one: &str, two: &str) -> usize {
    let (one, two): (Vec<char>, Vec<char>) = (one.chars().collect(), two.chars().collect());
    let mut rows = vec![(0..=two.len()).collect::<Vec<usize>>()];
    for i in 0..one.len() {
        let mut row = vec![i + 1];
        for j in 0..two.len() {
            let change = rows[i][j] + usize::from(one[i] != two[j]);
            let mut least = change.min(rows[i][j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && one[i] == two[j - 1] && one[i - 1] == two[j] {
                least = least.min(rows[i - 1][j - 1] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[one.len()][two.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edit_distance_counts_edits_and_swaps() {
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("both", "both"), 0);
        assert_eq!(distance("boht", "both"), 1, "a swap");
        assert_eq!(distance("chunks", "chunk"), 1);
        assert_eq!(distance("kitten", "sitting"), 3);
    }

    #[test]
    fn hint_suggests_only_similar_names() {
        assert_eq!(hint("strpe", ["mirror", "stripe"]), "; did you mean \"stripe\"?");
        assert_eq!(hint("bohT", ["rest", "both"]), "; did you mean \"both\"?");
        assert_eq!(hint("xyz", ["mirror", "stripe"]), "; known: mirror, stripe");
        assert_eq!(guess(&"x".repeat(65), &[&"x".repeat(64)]), None, "no name is so long");
        let many: Vec<String> = (0..=KNOWN_MAX).map(|n| format!("known{n}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(guess("knovn9", &many[1..]).is_some() && guess("knovn9", &many).is_none());
        assert_eq!(hint("xyz", []), "");
        assert_eq!(hint("xyz", (0..=LISTED_MAX).map(|_| "mirror")), "");
    }
}
