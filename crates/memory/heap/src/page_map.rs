//! A map from pages to numbers: four bytes per page, in memory that the kernel provides when it is first
//! touched.

/// Numbers of pages.
#[derive(Debug)]
pub(crate) struct PageMap(
    /// The number plus one; zero if the page has none.
    Vec<u32>,
);

impl PageMap {
    pub(crate) fn new(pages: u32) -> PageMap {
        PageMap(vec![0; pages as usize])
    }

    pub(crate) fn get(&self, page: u32) -> Option<u32> {
        self.0.get(page as usize)?.checked_sub(1)
    }

    pub(crate) fn set(&mut self, page: u32, number: u32) {
        self.0[page as usize] = number + 1;
    }

    pub(crate) fn clear(&mut self, page: u32) {
        self.0[page as usize] = 0;
    }
}
