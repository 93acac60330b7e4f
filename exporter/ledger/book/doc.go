// Package book has the results of the ledger: what is exported of a node's devices, claims and pods
// at one time. Everything that shows, judges or keeps results reads them here. The package has no
// state, and does not know how results come about.
package book
