// Package rule derives conditions of a manifest from its object, as the
// condition rules of a ManifestWork say: with CEL expressions, or with what is
// known of some kinds.
//
// Rules are written by whoever may write works, and an expression can be made to
// run for hours or to fill the memory. So everything that it may cost is
// bounded: by the cost units of CEL per expression and per manifest, by the
// sizes that single functions are given, and by time. What goes over a bound is
// an error in the condition, like any other mistake in an expression.
//
// [Evaluator] is pure besides its cache of compiled expressions; it makes its
// CEL environment when the first rule needs one.
package rule
