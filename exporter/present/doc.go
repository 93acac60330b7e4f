// Package present turns a snapshot into what people and programs see of it: devices, claims, pods
// and incidents with their states, figures and texts. Pages, terminals and JSON lay it out. Every
// sentence and every unit that a person reads is here; test/layout checks that the packages that
// lay it out format none.
//
// Bounds (max…) are for what the kubelet and vendors' libraries send.
package present
