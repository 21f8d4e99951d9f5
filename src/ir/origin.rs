//! Where a node comes from: a place in a source, the call that led there, the loop iteration.
//!
//! Origins are interned: a node holds one `u32`.

use std::{num::NonZeroU32, sync::Arc};

use rustc_hash::FxHashMap;

use crate::source::{SourceMap, Span};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OriginId(NonZeroU32);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Origin {
    pub span: Span,
    /// The call whose body holds `span`.
    pub parent: Option<OriginId>,
    /// The iteration of the loop around it: "block 12" for `for block in …`.
    pub iteration: Option<Arc<str>>,
}

/// Origins by id. Graphs that were made of one another share them: a pass adds none.
#[derive(Debug, Clone, PartialEq)]
pub struct Origins(Arc<Interned>);

#[derive(Debug, Clone, PartialEq, Default)]
struct Interned {
    entries: Vec<Origin>,
    ids: FxHashMap<Origin, OriginId>,
}

impl Default for Origins {
    fn default() -> Self {
        let mut origins = Origins(Arc::default());
        origins.intern(Origin { span: Span::default(), parent: None, iteration: None });
        origins
    }
}

impl Origins {
    /// The origin of nodes that no source line asked for.
    pub const NOWHERE: OriginId = OriginId(NonZeroU32::MIN);

    pub fn intern(&mut self, origin: Origin) -> OriginId {
        if let Some(&id) = self.0.ids.get(&origin) {
            return id;
        }
        let id = OriginId(NonZeroU32::MIN.saturating_add(self.0.entries.len() as u32));
        let interned = Arc::make_mut(&mut self.0);
        interned.entries.push(origin.clone());
        interned.ids.insert(origin, id);
        id
    }

    pub fn get(&self, id: OriginId) -> &Origin {
        static NOWHERE: Origin = Origin {
            span: Span { file: crate::source::FileId(0), start: 0, end: 0 },
            parent: None,
            iteration: None,
        };
        self.0.entries.get(id.0.get() as usize - 1).unwrap_or(&NOWHERE)
    }

    /// The origin, the call that led to it, the call that led to that, …
    pub fn chain(&self, id: OriginId) -> impl Iterator<Item = &Origin> {
        std::iter::successors(Some(self.get(id)), |o| o.parent.map(|p| self.get(p)))
    }

    /// The innermost line of the program that led to an origin; library code is left out.
    pub fn user_span(&self, id: OriginId, sources: &SourceMap) -> Option<Span> {
        let is_own = |span: Span| sources.get(span.file).is_some_and(|f| !f.is_library && !f.text.is_empty());
        self.chain(id).map(|o| o.span).find(|&span| span != Span::default() && is_own(span))
    }
}
