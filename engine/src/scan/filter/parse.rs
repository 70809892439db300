//! From SQL text to a [`Predicate`]. The grammar is `sqlparser`'s with PostgreSQL's precedence; of what it can parse, only
//! comparisons of columns with constants and what joins them are taken.

use super::{ColumnName, Comparison, Literal, LiteralValue, Predicate};
use crate::{Error, ErrorKind, Result};
use sqlparser::{
    ast::{BinaryOperator, CastKind, Expr, InTarget, Spanned, UnaryOperator, Value, ValueWithSpan},
    dialect::PostgreSqlDialect,
    parser::{Parser, ParserError},
    tokenizer::{Location, Token, Tokenizer},
};

/// Longer texts are not parsed.
const BYTES_MAX: usize = 1 << 20;
/// Words and operators (not the constants of lists): each can be a level of the tree that the parser makes.
const WORDS_MAX: usize = 2000;

/// Parses `text`.
pub(super) fn parse(text: &str) -> Result<Predicate> {
    if text.len() > BYTES_MAX {
        return Err(Error::new(ErrorKind::Usage, format!("a filter of more than {BYTES_MAX} bytes")));
    }
    let reader = Reader { text };
    let dialect = PostgreSqlDialect {};
    let tokens = Tokenizer::new(&dialect, text)
        .tokenize_with_location()
        .map_err(|e| reader.error(reader.position(e.location), &e.message))?;
    if let Some(equals) = tokens.iter().find(|t| t.token == Token::DoubleEq) {
        return Err(reader.error(reader.position(equals.span.start), "there is no operator ==, only ="));
    }
    let is_word = |token: &Token| {
        !matches!(
            token,
            Token::Whitespace(_) | Token::Comma | Token::Number(..) | Token::SingleQuotedString(_) | Token::Minus
        )
    };
    if tokens.iter().filter(|t| is_word(&t.token)).count() > WORDS_MAX {
        let error = Error::new(ErrorKind::Usage, format!("a filter of more than {WORDS_MAX} words and operators"));
        return Err(error.with_hint("compare with a list: a in (1, 2, 3)"));
    }
    let mut parser = Parser::new(&dialect).with_tokens_with_locations(tokens);
    let expr = parser.parse_expr().map_err(|e| {
        let at = reader.position(parser.peek_token_ref().span.start);
        match e {
            ParserError::RecursionLimitExceeded => reader.error(at, "parentheses are nested too deeply"),
            // The parser ends its message with a position of its own.
            ParserError::TokenizerError(m) | ParserError::ParserError(m) => {
                reader.error(at, m.split(" at Line:").next().unwrap_or("not understood"))
            }
        }
    })?;
    let rest = parser.peek_token_ref();
    if rest.token != Token::EOF {
        return Err(reader.error(reader.position(rest.span.start), &format!("expected the end, not {}", rest.token)));
    }
    reader.predicate(&expr)
}

struct Reader<'t> {
    text: &'t str,
}

impl Reader<'_> {
    /// A place as a number of characters from 1; behind the end if there is none.
    fn position(&self, place: Location) -> usize {
        if place.line == 0 {
            return self.text.chars().count() + 1;
        }
        let lines = usize::try_from(place.line - 1).unwrap_or(0);
        let before: usize = self.text.split_inclusive('\n').take(lines).map(|line| line.chars().count()).sum();
        before + usize::try_from(place.column).unwrap_or(0)
    }

    fn at(&self, expr: &Expr) -> usize {
        self.position(expr.span().start)
    }

    #[cold]
    fn error(&self, at: usize, what: &str) -> Error {
        Error::new(ErrorKind::Usage, format!("filter {:?}, character {at}: {what}", self.text))
    }

    fn refuse<T>(&self, expr: &Expr, what: &str) -> Result<T> {
        Err(self.error(self.at(expr), what))
    }

    fn predicate(&self, expr: &Expr) -> Result<Predicate> {
        match expr {
            Expr::Nested(inner) => self.predicate(inner),
            Expr::BinaryOp { op: BinaryOperator::And, .. } => {
                Ok(Predicate::And(self.chain(expr, &BinaryOperator::And)?))
            }
            Expr::BinaryOp { op: BinaryOperator::Or, .. } => Ok(Predicate::Or(self.chain(expr, &BinaryOperator::Or)?)),
            Expr::UnaryOp { op: UnaryOperator::Not, expr } => Ok(self.predicate(expr)?.not()),
            Expr::BinaryOp { left, op, right } => self.comparison(left, op, right),
            Expr::IsNull(inner) => self.is_null(inner),
            Expr::IsNotNull(inner) => Ok(self.is_null(inner)?.not()),
            Expr::IsTrue(inner) => self.is(inner, Some(true)),
            Expr::IsNotTrue(inner) => Ok(self.is(inner, Some(true))?.not()),
            Expr::IsFalse(inner) => self.is(inner, Some(false)),
            Expr::IsNotFalse(inner) => Ok(self.is(inner, Some(false))?.not()),
            Expr::IsUnknown(inner) => self.is(inner, None),
            Expr::IsNotUnknown(inner) => Ok(self.is(inner, None)?.not()),
            Expr::IsNotDistinctFrom(left, right) => self.same(left, right),
            Expr::IsDistinctFrom(left, right) => Ok(self.same(left, right)?.not()),
            Expr::Between { expr, negated, low, high } => {
                let (column, low, high) = (self.column(expr)?, self.literal(low)?, self.literal(high)?);
                Ok(negate(column.between(low, high), *negated))
            }
            Expr::In { expr, target: InTarget::List(list), negated, global: false } => {
                let column = self.column(expr)?;
                let values = list.iter().map(|value| self.literal(value)).collect::<Result<_>>()?;
                Ok(negate(Predicate::In { column, values }, *negated))
            }
            Expr::Like { negated, any: false, expr, pattern, escape_char } => {
                let (column, pattern) = (self.column(expr)?, self.literal(pattern)?);
                let escape = match escape_char {
                    None => Some('\\'),
                    Some(character) => self.escape(character)?,
                };
                Ok(negate(Predicate::Like { column, pattern, escape }, *negated))
            }
            Expr::Identifier(_) | Expr::CompoundIdentifier(_) => Ok(self.column(expr)?.is_set()),
            Expr::Value(ValueWithSpan { value: Value::Boolean(value), .. }) => Ok(Predicate::Constant(Some(*value))),
            Expr::Value(ValueWithSpan { value: Value::Null, .. }) => Ok(Predicate::Constant(None)),
            Expr::ILike { .. } | Expr::SimilarTo { .. } => {
                self.refuse(expr, "only LIKE is offered: what upper and lower case are depends on the collation")
            }
            Expr::In { .. } | Expr::Subquery(_) | Expr::Exists { .. } => {
                self.refuse(expr, "subqueries are not offered; give a list: a in (1, 2, 3)")
            }
            _ => self.refuse(expr, &format!("not a condition that is offered: {}", shown(expr))),
        }
    }

    /// What one operator joins. Its chain leans to the left and can be long: no recursion along it.
    fn chain(&self, expr: &Expr, operator: &BinaryOperator) -> Result<Vec<Predicate>> {
        let (mut links, mut next) = (Vec::new(), expr);
        while let Expr::BinaryOp { left, op, right } = next
            && op == operator
        {
            links.push(&**right);
            next = left;
        }
        links.push(next);
        links.iter().rev().map(|link| self.predicate(link)).collect()
    }

    fn comparison(&self, left: &Expr, op: &BinaryOperator, right: &Expr) -> Result<Predicate> {
        let op = match op {
            BinaryOperator::Eq => Comparison::Eq,
            BinaryOperator::NotEq => Comparison::Ne,
            BinaryOperator::Lt => Comparison::Lt,
            BinaryOperator::LtEq => Comparison::Le,
            BinaryOperator::Gt => Comparison::Gt,
            BinaryOperator::GtEq => Comparison::Ge,
            other => {
                return Err(self.error(
                    self.at(left),
                    &format!("operator {other} is not offered; there are = <> < <= > >=, and, or, not"),
                ));
            }
        };
        match (is_column(left), is_column(right)) {
            (true, false) => Ok(Predicate::Compare { column: self.column(left)?, op, value: self.literal(right)? }),
            (false, true) => {
                Ok(Predicate::Compare { column: self.column(right)?, op: op.flipped(), value: self.literal(left)? })
            }
            (true, true) => self.refuse(right, "a column is compared with a constant, not with another column"),
            (false, false) => self.refuse(left, "one side of a comparison is a column, the other one a constant"),
        }
    }

    /// `IS NOT DISTINCT FROM`.
    fn same(&self, left: &Expr, right: &Expr) -> Result<Predicate> {
        let (column, value) = if is_column(left) { (left, right) } else { (right, left) };
        let (column, value) = (self.column(column)?, self.literal(value)?);
        if value.value == LiteralValue::Null {
            return Ok(column.is_null());
        }
        Ok(Predicate::Is(Box::new(column.eq(value)), Some(true)))
    }

    fn is_null(&self, expr: &Expr) -> Result<Predicate> {
        if is_column(expr) { Ok(self.column(expr)?.is_null()) } else { self.is(expr, None) }
    }

    fn is(&self, expr: &Expr, truth: Option<bool>) -> Result<Predicate> {
        Ok(Predicate::Is(Box::new(self.predicate(expr)?), truth))
    }

    fn column(&self, expr: &Expr) -> Result<ColumnName> {
        match expr {
            Expr::Nested(inner) => self.column(inner),
            Expr::Identifier(name) => {
                let at = self.position(name.span.start);
                // Only ASCII folds, as the server does for multi-byte encodings.
                let folded = match name.quote_style {
                    None => name.value.to_ascii_lowercase(),
                    Some('"') => name.value.clone(),
                    Some(_) => return self.refuse(expr, "names are quoted with double quotes"),
                };
                Ok(ColumnName { name: folded, at })
            }
            Expr::CompoundIdentifier(_) => self.refuse(expr, "name the column alone, without its table"),
            _ => self.refuse(expr, &format!("expected a column, not {}", shown(expr))),
        }
    }

    fn escape(&self, expr: &Expr) -> Result<Option<char>> {
        if let Expr::Value(ValueWithSpan { value: Value::SingleQuotedString(text), .. }) = expr {
            let mut characters = text.chars();
            if let (first, None) = (characters.next(), characters.next()) {
                return Ok(first);
            }
        }
        self.refuse(expr, "expected one quoted character behind ESCAPE, or none")
    }

    fn literal(&self, expr: &Expr) -> Result<Literal> {
        let at = self.at(expr);
        let value = match expr {
            Expr::Nested(inner) => return self.literal(inner),
            Expr::Value(ValueWithSpan { value, .. }) => match value {
                Value::Number(digits, false) => LiteralValue::Number(digits.clone()),
                Value::SingleQuotedString(text) | Value::EscapedStringLiteral(text) => LiteralValue::Text(text.clone()),
                Value::DollarQuotedString(text) => LiteralValue::Text(text.value.clone()),
                Value::Boolean(value) => LiteralValue::Bool(*value),
                Value::Null => LiteralValue::Null,
                _ => return self.refuse(expr, &format!("not a constant that is offered: {}", shown(expr))),
            },
            Expr::UnaryOp { op: sign @ (UnaryOperator::Minus | UnaryOperator::Plus), expr: inner } => {
                let literal = self.literal(inner)?;
                let LiteralValue::Number(digits) = &literal.value else {
                    return self.refuse(expr, "a sign belongs before a number");
                };
                let negative = (*sign == UnaryOperator::Minus) != digits.starts_with('-');
                let digits = digits.trim_start_matches('-');
                let value = LiteralValue::Number(if negative { format!("-{digits}") } else { digits.to_owned() });
                return Ok(Literal { value, at: literal.at.saturating_sub(1).max(1), ..literal });
            }
            Expr::TypedString(typed) => {
                let Value::SingleQuotedString(text) = &typed.value.value else {
                    return self.refuse(expr, "expected a quoted value behind the type");
                };
                let cast = Some(typed.data_type.to_string().to_ascii_lowercase());
                let at = self.position(typed.value.span.start);
                return Ok(Literal { value: LiteralValue::Text(text.clone()), cast, at });
            }
            Expr::Cast { kind: CastKind::Cast | CastKind::DoubleColon, expr: inner, data_type, .. } => {
                let literal = self.literal(inner)?;
                if literal.cast.is_some() {
                    return self.refuse(expr, "a constant is cast once");
                }
                return Ok(Literal { cast: Some(data_type.to_string().to_ascii_lowercase()), ..literal });
            }
            _ => return self.refuse(expr, &format!("expected a constant, not {}", shown(expr))),
        };
        Ok(Literal { value, cast: None, at })
    }
}

fn negate(predicate: Predicate, negated: bool) -> Predicate {
    if negated { predicate.not() } else { predicate }
}

fn is_column(expr: &Expr) -> bool {
    match expr {
        Expr::Nested(inner) => is_column(inner),
        _ => matches!(expr, Expr::Identifier(_) | Expr::CompoundIdentifier(_)),
    }
}

/// An expression in an error's message: not more than a line of it.
fn shown(expr: &Expr) -> String {
    let text = expr.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}
