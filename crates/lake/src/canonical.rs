//! The fast way for what this program's own producers write: one flat object without spaces, escapes or nested values, its
//! fields in the order of their declaration.
//!
//! Anything else, valid or not, is left to [`crate::decode`]; if both decode a value, they agree.

use std::borrow::Cow;

use eadt_schemas::fast::JsonCursor;

use crate::decode::{CellValue, ColumnSet, DecodedValue};
use crate::plan::{ColumnType, FieldNode, TopicColumns};

/// Decodes a value; returns `None` if it has another form. `cells` is memory to use.
pub(crate) fn decode<'a>(
    plan: &TopicColumns,
    value: &'a [u8],
    mut cells: Vec<(usize, CellValue<'a>)>,
) -> Option<DecodedValue<'a>> {
    let mut cursor = JsonCursor::new(value);
    // Fields only come in order here, so none comes twice.
    let mut columns_set = ColumnSet::default();
    let mut hint = 0;
    cells.clear();
    cursor.take(b"{").then_some(())?;
    loop {
        let at = plan.members.take(&mut cursor, hint)?;
        hint = at + 1;
        let FieldNode::Column(index) = plan.members.list[at].node else { return None };
        columns_set.insert(index);
        // Pushed in each arm: a cell that is first put together on the stack is copied, which takes as long as reading a number.
        match plan.columns[index].kind {
            ColumnType::Text => {
                let text = cursor.text()?;
                cells.push((index, CellValue::Text(Cow::Borrowed(text))));
            }
            ColumnType::Time => {
                let micros = cursor.time()?.micros();
                cells.push((index, CellValue::Time(micros)));
            }
            ColumnType::Int => {
                let number = cursor.unsigned()?.try_into().ok()?;
                cells.push((index, CellValue::Int(number)));
            }
            ColumnType::Float => {
                let number = cursor.float()?;
                cells.push((index, CellValue::Float(number)));
            }
            ColumnType::Bool => {
                let flag = cursor.boolean()?;
                cells.push((index, CellValue::Bool(flag)));
            }
            ColumnType::Json | ColumnType::Bytes => return None,
        }
        if !cursor.take(b",") {
            return (cursor.take(b"}") && cursor.is_at_end()).then_some(DecodedValue { cells, columns_set, extra: None });
        }
    }
}
