//! Pages: cut by rows and by bytes, so that no answer swells with what tools returned. Knows no SQL.

use std::ops::Deref;

/// Most bytes of a page, stored texts with their blobs; a single row may have more.
pub const PAGE_BYTES: usize = 4 * 1024 * 1024;

/// Rows in order, and whether the list goes on behind them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T> {
    /// The rows: as many as were asked for, or fewer when they are large; none only at the end.
    pub rows: Vec<T>,
    /// Whether there are more.
    pub more: bool,
}

impl<T> Deref for Page<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.rows
    }
}

impl<T> IntoIterator for Page<T> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        self.rows.into_iter()
    }
}

/// A page that is being read. Ask the database for one row more than the limit.
pub(super) struct Filling<T> {
    page: Page<T>,
    limit: usize,
    bytes: usize,
}

impl<T> Filling<T> {
    pub(super) fn new(limit: u32) -> Self {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        Self { page: Page { rows: Vec::new(), more: false }, limit, bytes: 0 }
    }

    /// Takes the next row. `false`: the page is full without it.
    pub(super) fn take(&mut self, bytes: usize, row: T) -> bool {
        self.bytes = self.bytes.saturating_add(bytes);
        let too_large = self.bytes > PAGE_BYTES && !self.page.rows.is_empty();
        if too_large || self.page.rows.len() >= self.limit {
            self.page.more = true;
            return false;
        }
        self.page.rows.push(row);
        true
    }

    pub(super) fn page(self) -> Page<T> {
        self.page
    }
}

impl<T> Page<T> {
    /// The same page of other rows.
    pub(super) fn try_map<U, E>(self, map: impl FnMut(T) -> Result<U, E>) -> Result<Page<U>, E> {
        Ok(Page { rows: self.rows.into_iter().map(map).collect::<Result<_, _>>()?, more: self.more })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(limit: u32, sizes: &[usize], rows: usize, more: bool) {
        let mut filling = Filling::new(limit);
        for (at, size) in sizes.iter().enumerate() {
            if !filling.take(*size, at) {
                break;
            }
        }
        let page = filling.page();
        assert_eq!((page.rows.len(), page.more), (rows, more), "{limit} {sizes:?}");
    }

    #[test]
    fn a_page_ends_at_its_rows_or_its_bytes_and_has_one_row_at_least() {
        check(3, &[], 0, false);
        check(3, &[1, 1, 1], 3, false);
        check(3, &[1, 1, 1, 1], 3, true);
        check(3, &[PAGE_BYTES + 1], 1, false);
        check(3, &[PAGE_BYTES + 1, 1], 1, true);
        check(3, &[PAGE_BYTES, 0, 1], 2, true);
        check(3, &[PAGE_BYTES / 2, PAGE_BYTES / 2, 1, 1], 2, true);
    }
}
