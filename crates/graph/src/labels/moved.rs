//! A spec from before the end of a migration: with it the bytes would move a second time.

use block::seeded::{self, Bug};
use block::{Error, Reason};

use super::survey::Survey;
use crate::spec::Planned;

impl Survey {
    /// Migrations that a start would begin although an export shows their target already, as the labels say. A change of a
    /// running graph compares what exports show.
    pub(super) fn moved(&self, planned: &Planned) -> Vec<Error> {
        if self.opening.changes || seeded::on(Bug::MigrationRepeated) {
            return Vec::new();
        }
        let before = self.spec_before();
        let name = |index: usize| &planned.nodes[planned.through(index)].name;
        let nodes = planned.nodes.iter();
        let begun =
            nodes.filter(|node| node.kind.capabilities.moves.is_some() && !before.has(&node.name));
        let refusals = begun.filter_map(|node| {
            let [from, to] = node.lowers[..] else { return None };
            let (from, to, moves) = (name(from), name(to), &node.name);
            let shown_by = before.shown_by(to, from)?;
            let words = format!("{moves} would move the bytes of {from} to {to}, and the labels say that \
                         {shown_by} shows {to} already: this spec is from before the end of a migration");
            Some(Error::because(Reason::LabelForgotten, words).next(format!("take {moves} out of the spec, and put on {to} what is on it")).at(moves))
        });
        refusals.collect()
    }
}
