// Package saved is the ledger's persistent state: plain structs, how their changes are written, and
// how a later process reads them. The ledger has the facts that need no conversion in the same
// form, as [AccountFacts], [FitFacts] and [Use]; the others it converts from and to its own types.
// Pure.
//
// A state is a sequence of records in CBOR (RFC 8949). Each record is a map with one entry, of the
// kind of the record, whose value is a map with one entry, of the number of the object. So each
// record is a [State] with one object in it, and reading a record adds it to the state, or replaces
// the record of the same kind and number. Objects have the same number in all of their records.
//
// Fields are integer keys. A key is never used again with another meaning; new fields get new keys.
// An absent field is zero, and an unknown one is skipped. Structs whose fields change at each tick
// are arrays.
package saved
