package xid

// Table returns the meaning of all codes that NVIDIA's drivers use, in their order. Facts are from
// NVIDIA's Xid catalog for A100 to GB200 ("Analyzing Xid Errors with the Xid Catalog", up to XID
// 172: immediate action and conditions), nverror.h of the open kernel modules (names of codes), and
// the Fabric Manager's guide (SXids). Codes of the catalog without an action, or that it calls
// unused, are left out, unless their description says what they mean.
func Table() []Meaning { //nolint:funlen // a table
	return []Meaning{
		row(8, 8, "a channel did not finish in time", Ends, Program, RestartWorkload),
		row(11, 11, "invalid commands in a channel", Ends, Program, RestartWorkload),
		row(13, 13, "exception of the compute or graphics engine: an illegal access or instruction", Ends, Program, None),
		row(14, 14, "an error that a test injected", GoesOn, Nobody, None),
		row(25, 25, "invalid commands in a channel", Ends, Program, RestartWorkload),
		row(31, 31, "page fault: an access to an address that is not mapped", Ends, Program, None),
		row(32, 32, "corrupted commands in a channel, often by PCIe", Ends, Hardware, RestartWorkload),
		row(37, 38, "error of the firmware that switches contexts", GoesOn, Driver, Watch),
		row(39, 41, "exception of a copy engine", Ends, Any, RestartWorkload),
		row(43, 43, "a channel was stopped after an error of its program", Ends, Program, None),
		row(44, 44, "fault of the graphics engine during a switch of contexts", GoesOn, Any, Watch),
		row(45, 45, "channels were removed: the program was ended, or follows another error", Ends, Program, None),
		row(46, 46, "the device stopped", AllEnds, Any, Reset),
		row(48, 48, "uncorrectable memory error", Ends, Hardware, Reset),
		row(54, 54, "the board's power cable is not connected", GoesOn, Hardware, Investigate),
		row(60, 60, "exception of the video processor", Ends, Any, RestartWorkload),
		row(62, 62, "the controller of power management halted", AllEnds, Any, Reset),
		row(63, 63, "memory was remapped or retired; a reset makes it effective", GoesOn, Hardware, Watch),
		row(64, 64, "memory could not be remapped or retired", GoesOn, Hardware, Reset),
		row(66, 67, "illegal access by the driver", GoesOn, Driver, Watch),
		row(68, 68, "exception of a video decoder", Ends, Any, RestartWorkload),
		row(69, 69, "invalid command for the compute or graphics engine", Ends, Program, RestartWorkload),
		row(70, 72, "error of a copy engine", Ends, Any, RestartWorkload),
		row(74, 74, "error of NVLink", Unclear, Link, Reset),
		row(75, 77, "error of a copy engine", Ends, Any, RestartWorkload),
		row(78, 78, "a virtual GPU could not start: versions of host and guest", GoesOn, Driver, Investigate),
		row(OffBus, OffBus, "the device fell off the bus", AllEnds, Hardware, RestartHost),
		row(80, 80, "commands arrived corrupted", Ends, Hardware, RestartWorkload),
		row(82, 86, "error of an engine for images, video, copies or optical flow", Ends, Any, RestartWorkload),
		row(88, 89, "error of a video decoder", Ends, Any, RestartWorkload),
		row(92, 92, "many corrected memory errors", GoesOn, Hardware, Watch),
		row(93, 93, "the limit of writes to the board's memory of settings is reached", GoesOn, Nobody, Watch),
		row(94, 94, "memory error, contained to one program", Ends, Hardware, RestartWorkload),
		row(95, 95, "memory error that was not contained", AllEnds, Hardware, Reset),
		row(96, 105, "error of a video decoder or an engine for images", Ends, Any, RestartWorkload),
		row(106, 107, "message of a test", GoesOn, Nobody, None),
		row(109, 109, "a switch of contexts did not finish in time", AllEnds, Any, Reset),
		row(110, 110, "security fault", AllEnds, Hardware, Reset),
		row(119, 120, "the GPU's system processor does not answer, or failed", AllEnds, Driver, Reset),
		row(121, 121, "corrected errors of the link to the processor", GoesOn, Link, Watch),
		row(126, 135, "error of a copy engine", Ends, Any, RestartWorkload),
		row(136, 136, "training of a link failed", Unclear, Link, Reset),
		row(137, 137, "illegal access to another GPU over NVLink", Ends, Program, RestartWorkload),
		row(139, 139, "error of the engine for optical flow", Ends, Any, RestartWorkload),
		row(140, 140, "uncorrectable memory error that could not be handled", AllEnds, Hardware, Reset),
		row(141, 141, "error of a fast path of CUDA", GoesOn, Driver, Watch),
		row(142, 142, "error of a video encoder", Ends, Any, Investigate),
		row(143, 143, "the device could not be initialized", AllEnds, Any, Reset),
		severe(row(144, 150, "error of NVLink 5", AllEnds, Link, Reset)),
		row(151, 151, "error of keys in confidential computing; restart the virtual machine", AllEnds, Driver, RestartHost),
		row(152, 153, "error of a deep-learning accelerator", GoesOn, Any, Watch),
		row(
			RecoveryAction, RecoveryAction, "the driver requests a recovery because of another error", Unclear, Any,
			Investigate,
		),
		row(155, 155, "software took a link of NVLink down", Unclear, Driver, Reset),
		row(156, 156, "a defective resource was retired", Unclear, Hardware, Reset),
		row(157, 157, "a defective resource could not be retired: none is left", GoesOn, Hardware, Watch),
		row(158, 158, "a fatal timeout of the device", AllEnds, Any, Reset),
		row(159, 159, "error of the link to the processor", Ends, Any, Investigate),
		row(160, 160, "a memory channel was retired", GoesOn, Hardware, Watch),
		row(161, 161, "a memory channel could not be retired", GoesOn, Hardware, Watch),
		row(162, 162, "power smoothing works again", GoesOn, Nobody, None),
		row(163, 165, "power smoothing is off, or its hardware is worn", GoesOn, Hardware, Watch),
		row(166, 166, "unencrypted traffic in confidential computing", Unclear, Link, Investigate),
		row(167, 167, "a fatal timeout of PCIe", AllEnds, Hardware, Investigate),
		row(168, 168, "errors in protected memory: there is less memory", GoesOn, Hardware, Investigate),
		row(169, 169, "the security processor halted", AllEnds, Any, Investigate),
		row(170, 170, "error of NVLink in confidential computing", Unclear, Link, Investigate),
		row(171, 172, "uncorrectable memory error; details of XID 48", Ends, Hardware, Reset),
		severe(row(FirstSXid, 99999, "error of an NVSwitch (SXid)", AllEnds, Link, Reset)),
	}
}

func row(first, last int, what string, w Work, c Cause, a Action) Meaning {
	return Meaning{First: first, Last: last, What: what, Work: w, Cause: c, Action: a}
}

func severe(m Meaning) Meaning {
	m.BySeverity = true
	return m
}
