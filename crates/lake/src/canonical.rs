//! The fast way for what this program's own producers write: one flat object without spaces, escapes or nested values, its
//! fields in the order of their declaration.
//!
//! Anything else, valid or not, is left to [`crate::decode`]; where both decode a value, they agree.

use std::borrow::Cow;

use eadt_schemas::fast::Cursor;

use crate::decode::{Cell, Decoded, Seen};
use crate::plan::{Kind, Node, Plan};

/// `None`: not of that form. `cells` is memory to use.
pub(crate) fn decode<'a>(plan: &Plan, value: &'a [u8], mut cells: Vec<(usize, Cell<'a>)>) -> Option<Decoded<'a>> {
    let mut cursor = Cursor::new(value);
    // Fields only come in order here, so none comes twice.
    let mut seen = Seen::default();
    let mut hint = 0;
    cells.clear();
    cursor.take(b"{").then_some(())?;
    loop {
        let at = plan.members.take(&mut cursor, hint)?;
        hint = at + 1;
        let Node::Column(index) = plan.members.list[at].node else { return None };
        seen.insert(index);
        let cell = match plan.columns[index].kind {
            Kind::Text => Cell::Text(Cow::Borrowed(cursor.text()?)),
            Kind::Time => Cell::Time(cursor.time()?.micros()),
            Kind::Int => Cell::Int(cursor.unsigned()?.try_into().ok()?),
            Kind::Float => Cell::Float(cursor.float()?),
            Kind::Bool => Cell::Bool(cursor.boolean()?),
            Kind::Json | Kind::Bytes => return None,
        };
        cells.push((index, cell));
        if !cursor.take(b",") {
            return (cursor.take(b"}") && cursor.is_at_end()).then_some(Decoded { cells, seen, extra: None });
        }
    }
}
