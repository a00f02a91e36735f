//! Verification of every copy of a vault, without writes.

use block::Result;

use super::entry::ObjectKind;
use super::number::{self, PageNumber};
use super::replicas::PageOfCopy;
use super::{Bitmap, Log, ObjectId, Vault};

/// Maximum number of faults that a check of a vault describes; further faults are only counted.
pub const FINDINGS_MAX: usize = 1000;

/// Number of pages that a check verifies in one batch. A checkpoint may run between two batches.
const BATCH: u64 = 64;

/// Result of the verification of a vault.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Findings {
    /// Number of pages that the check verified, each on every current copy of the vault.
    pub pages: u64,
    /// Descriptions of the first [`FINDINGS_MAX`] faults.
    pub wrong: Vec<String>,
    /// Number of all faults, including those that are not described.
    pub count: u64,
    /// Whether no data are lost: each page that is damaged on one copy of the vault, or on one copy of a redundant disk, is
    /// intact on another copy.
    pub repairable: bool,
}

impl Findings {
    fn note(&mut self, words: String) {
        self.count += 1;
        if self.wrong.len() < FINDINGS_MAX {
            self.wrong.push(words);
        }
    }
}

impl Vault {
    /// Verifies every current copy of the vault: both superblocks, every page to which the map of pages points, the log
    /// objects, and the counts of the bitmaps. Opening has verified the log of the vault. Writes nothing; but the next
    /// checkpoint of a vault that is open for writing rewrites pages that are damaged on one copy and intact on another.
    ///
    /// # Errors
    /// The error of a disk that cannot be read.
    pub async fn check(&self) -> Result<Findings> {
        let mut findings = Findings { repairable: true, ..Findings::default() };
        let inner = &self.0;
        for damaged in inner.replicas.damaged_superblocks().await? {
            findings.note(format!("superblock on {damaged}; the vault uses the other superblock"));
        }
        let mut next = Some(0);
        while next.is_some() {
            // A checkpoint during a batch would write new versions of the pages that are being verified.
            let _turn = inner.checkpointing.lock().await;
            for _ in 0..BATCH {
                let Some(number) = next else { break };
                self.check_page(number, &mut findings).await?;
                next = inner.replicas.geometry().after(number);
            }
            inner.env.give_way().await;
        }
        let objects: Vec<_> = {
            let directory = inner.directory.borrow();
            directory.all().map(|entry| (ObjectId(entry.number), entry.kind)).collect()
        };
        for (id, kind) in objects {
            let fault = match kind {
                ObjectKind::Log => Log::open(self, id).await.err().map(|error| error.to_string()),
                ObjectKind::Bitmap => self.check_bitmap(id).await,
                ObjectKind::Cell | ObjectKind::Array => None,
            };
            if let Some(words) = fault {
                findings.repairable = false;
                findings.note(words);
            }
        }
        Ok(findings)
    }

    /// Compares a bitmap with its count, between two changes of the vault.
    async fn check_bitmap(&self, id: ObjectId) -> Option<String> {
        let _still = self.0.commits.logging.lock().await;
        // A page that cannot be read is reported with the pages.
        Bitmap::new(self, id).miscount().await.ok().flatten()
    }

    async fn check_page(&self, number: PageNumber, findings: &mut Findings) -> Result<()> {
        let inner = &self.0;
        let pointer = match inner.tree.pointer(&inner.replicas, number).await {
            Ok(None) => return Ok(()),
            Ok(Some(pointer)) => pointer,
            // The damaged page of the map above this page is reported when the check reaches that map page.
            Err(_) => return Ok(()),
        };
        findings.pages += 1;
        let (mut right, mut has_any) = (0, false);
        for copy in inner.replicas.current() {
            match inner.replicas.page_of(copy, number, &pointer).await {
                Ok(PageOfCopy { page, wrong }) => {
                    right += usize::from(page.is_some() && wrong.is_none());
                    has_any |= page.is_some();
                    if let Some(words) = wrong {
                        findings.note(format!("{} on {words}", number::describe(number)));
                    }
                }
                Err(error) => findings.note(format!("{}: {error}", number::describe(number))),
            }
        }
        if !has_any {
            findings.repairable = false;
        } else if right < inner.replicas.current().len() {
            inner.tree.note_mend(number);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use sim::SimWorld;
    use testkit::recorded::{Disk, Trace};

    use super::super::record::Verb;
    use super::super::{Options, Shape, Spec};
    use super::*;

    #[test]
    fn check_reports_bitmap_with_wrong_count() {
        let (world, shape) = (SimWorld::new(1), Shape { objects: 8, ..Shape::default() });
        let env = world.env();
        let checked = world.block_on(async {
            let lower = Disk::new(0, vec![0; 1 << 20], &Trace::default()).lower();
            Vault::format(&env, std::slice::from_ref(&lower), shape).await.unwrap();
            let vault = Vault::open(&env, vec![Some(lower)], &Options::default()).await.unwrap();
            let mut transaction = vault.begin();
            let id = transaction.create(&Spec::bitmap("a", 0, 100)).unwrap();
            Bitmap::new(&vault, id).put(&mut transaction, 7, 3, true).unwrap();
            vault.commit(transaction).await.unwrap();
            assert_eq!(vault.check().await.unwrap().wrong, Vec::<String>::new());
            let mut transaction = vault.begin();
            transaction.change(id.0, 0, Verb::Write(&4_u64.to_le_bytes()));
            vault.commit(transaction).await.unwrap();
            let findings = vault.check().await.unwrap();
            let expected = "states 4 set bits, and has 3";
            assert!(findings.wrong[0].ends_with(expected), "{:?}", findings.wrong);
            assert!(!findings.repairable);
        });
        checked.unwrap();
    }
}
