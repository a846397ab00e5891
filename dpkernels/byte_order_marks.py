"""The marks at the beginning of a text file that tell its encoding."""

UTF8_MARK = b"\xef\xbb\xbf"  # by which spreadsheets know UTF-8; it is no part of the text
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
UTF16_PROBLEM = "is UTF-16; a text in UTF-8 is needed (iconv -f UTF-16 -t UTF-8)"  # of a file, whose name precedes it
